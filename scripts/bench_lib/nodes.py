"""Two nodes of two ranks each, and a spare where one is needed, on hosts of their own (:mod:`support.hosts`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_lib import recovery
from bench_lib.contenders import FTLAUNCH, ROOT, Contender
from bench_lib.runner import Failed, Running, start
from bench_lib.settings import Figures, Settings
from support import procfs
from support.hosts import INTERFACE, Hosts
from support.waiting import wait_until

DRILL = ROOT / "tests" / "workloads" / "train_ddp.py"
PHASES = {
    "failure_detected": "known",
    "workers_stopped": "stopped",
    "rendezvous_completed": "agreed",
    "workers_started": "started",
    "training_resumed": "first_beat",
}
_RANKS = range(4)
_PER_NODE = 2
_STEPS_BETWEEN = 50
_START_S, _WARM_S, _RECOVERY_S = 60.0, 120.0, 120.0


class Nodes:
    """One job on several hosts. All agents write to one folder, as to a shared file system."""

    def __init__(self, contender: Contender, hosts: Hosts, folder: Path, meeting: tuple[str, str]) -> None:
        self.hosts = hosts
        self.out = folder / "out"
        self.out.mkdir()
        self.agents: dict[str, Running] = {}
        self._contender = contender
        self._backend, self._endpoint = meeting
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *ignored: object) -> None:
        self._stack.close()

    def start(self, host: str) -> None:
        """Start an agent on a host."""
        options = ["--nnodes", "2", "--rdzv-backend", self._backend, "--rdzv-endpoint", self._endpoint]
        options += ["--rdzv-id", "bench", "--local-addr", self.hosts.address(host)]
        command = self.hosts.on(host, *self._contender.command(DRILL, _PER_NODE, 100, *options))
        drill = {"DRILL_STEPS": "1000000", "DRILL_OUT": str(self.out), "GLOO_SOCKET_IFNAME": INTERFACE}
        agent = start(command, {**self._contender.environment, **drill})
        self.agents[host] = self._stack.enter_context(agent)

    def events(self, host: str) -> list[dict[str, Any]]:
        """Return what an agent of ours has recorded so far."""
        for path in (self.agents[host].folder / "home").rglob("events.jsonl"):
            return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return []

    def warm(self, host: str) -> bool:
        """Return whether all standbys of a host are ready."""
        ready = 0
        for event in self.events(host):
            ready = 0 if event["event"] == "workers_started" else ready + (event["event"] == "standby_ready")
        return ready == _PER_NODE

    def pid(self, rank: int) -> int:
        """Return the process that is this rank now."""
        starts = [event for event in self.story(rank) if event["event"] == "start"]
        return int(starts[-1]["pid"])

    def host_of(self, rank: int) -> str:
        """Return where this rank runs."""
        pid = self.pid(rank)
        return next(host for host, agent in self.agents.items() if pid in procfs.descendants([agent.process.pid]))

    def story(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has told so far."""
        return [event for event in recovery.events(self.out) if event["rank"] == rank]

    def new_step(self, rank: int, since: float) -> float | None:
        """Return when the first process that this rank got after ``since`` had done a step; ``None`` before it has."""
        story = [event for event in self.story(rank) if event["t"] > since]
        new = {event["pid"] for event in story if event["event"] == "start"}
        return next((event["t"] for event in story if event["event"] == "step" and event["pid"] in new), None)

    def steps(self, rank: int, count: int) -> bool:
        """Return whether the present process of a rank has done so many steps."""
        story = self.story(rank)
        pids = [event["pid"] for event in story if event["event"] == "start"]
        return bool(pids) and sum(e["event"] == "step" and e["pid"] == pids[-1] for e in story) >= count

    def check(self) -> None:
        """Raise :class:`Failed` when an agent has ended that we did not end."""
        for host, agent in self.agents.items():
            if agent.process.poll() is not None:
                raise Failed(f"the agent on {host} ended with {agent.process.returncode}: {agent.tail()}")

    def ready(self, standbys: bool) -> None:
        """Wait until all ranks train, and all standbys are warm."""

        def settled() -> bool:
            self.check()
            return all(self.steps(rank, _STEPS_BETWEEN) for rank in _RANKS)

        wait_until(settled, _START_S, "all ranks train")
        if standbys:
            wait_until(lambda: all(map(self.warm, self.agents)), _WARM_S, "all standbys are warm")


Strike = Callable[[Nodes, int], float]
"""Hurts the job, for the n-th time; returns when."""


def kill_rank(nodes: Nodes, number: int) -> float:
    """SIGKILL of a rank on the second node."""
    pid = nodes.pid(_RANKS[-1])
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at


def kill_agent(nodes: Nodes, number: int) -> float:
    """SIGKILL of an agent: of the node with the last ranks, every other time of the one with the first."""
    host = nodes.host_of(_RANKS[0 if number % 2 else -1])
    agent = nodes.agents.pop(host)
    at = time.monotonic()
    agent.process.kill()
    return at


def kill_host(nodes: Nodes, number: int) -> float:
    """The same, and its cable is pulled."""
    host = nodes.host_of(_RANKS[0 if number % 2 else -1])
    agent = nodes.agents.pop(host)
    at = time.monotonic()
    nodes.hosts.cable(host, "down")
    agent.process.kill()
    return at


def fault(strike: Strike, spare: bool = False) -> Callable[[Contender, Settings], Figures]:
    """Return a sampler for ``node_faults`` faults of one kind in one job, each once everything is warm again."""

    def sample(contender: Contender, settings: Settings) -> Figures:
        names = ("a", "b", "c") if spare else ("a", "b")
        with _job(contender, names) as nodes:
            found = []
            for number in range(settings.node_faults):
                nodes.ready(contender.venv == "ftlaunch")
                found.append(_one(nodes, strike, number))
                for host in set(names) - set(nodes.agents):
                    nodes.hosts.cable(host, "up")
                    nodes.start(host)
        each = {name: [one[name] for one in found if name in one] for name in found[0]}
        figures = {name: statistics.median(values) for name, values in each.items()}
        return {**figures, "worst_s": max(each["resume_s"]), "faults": len(found)}

    return sample


@contextlib.contextmanager
def _job(contender: Contender, names: tuple[str, ...]) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftb-")))
        hosts = stack.enter_context(Hosts(*names))
        meeting = ("c10d", f"{hosts.address(names[0])}:29400")
        if contender is FTLAUNCH:
            meeting = ("etcd", stack.enter_context(hosts.etcd(folder)))
        nodes = stack.enter_context(Nodes(contender, hosts, folder, meeting))
        for host in names:
            nodes.start(host)
        yield nodes


def _one(nodes: Nodes, strike: Strike, number: int) -> Figures:
    at = strike(nodes, number)

    def recovered() -> list[float]:
        nodes.check()
        steps = [nodes.new_step(rank, at) for rank in _RANKS]
        return [step for step in steps if step is not None] if None not in steps else []

    steps = wait_until(recovered, _RECOVERY_S, "all ranks step again")
    return {"resume_s": max(steps) - at, **_phases(nodes, at)}


def _phases(nodes: Nodes, at: float) -> Figures:
    """When the last agent was so far, in milliseconds from the fault; agreeing: from when the first one knew."""
    moments: dict[str, list[float]] = {}
    warm = 0
    for host in nodes.agents:
        for event in nodes.events(host):
            if event["monotonic"] >= at and event["event"] in PHASES:
                moments.setdefault(event["event"], []).append(event["monotonic"])
                warm += event.get("warm", 0)
    if "failure_detected" not in moments:
        return {}
    agreeing = max(moments["rendezvous_completed"]) - min(moments["failure_detected"])
    last = {f"{PHASES[name]}_ms": 1000 * (max(times) - at) for name, times in moments.items()}
    return {"agreeing_ms": 1000 * agreeing, **last, "warm": warm}
