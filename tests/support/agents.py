"""Simulated agents without ranks: they ask, hear, and remember what they heard.

In the test's process they are :class:`Agent`. Run as a program, this module is one agent in a process of its own, with
one made-up worker that ticks for as long as it may; :class:`Program` starts it and reads what it tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.node import describe_node
from ftlaunch.rendezvous.etcd import EtcdRendezvous, EtcdSettings, Job, settings_from
from ftlaunch.rendezvous.hub import HubRendezvous, HubSettings
from ftlaunch.rendezvous.hub import settings_from as hub_settings_from
from ftlaunch.rendezvous.hub.settings import Meeting
from ftlaunch.rendezvous.interface import (
    Closed,
    JoinFailed,
    Joining,
    LeaseLost,
    MembershipChanged,
    Outcome,
    PeerFailed,
    RendezvousEvent,
    WorldAgreed,
)
from support.waiting import wait_until

E = TypeVar("E", bound=RendezvousEvent)
_PATIENCE_S = 15.0
Heard = dict[str, Any]


class Agent:
    """One agent of a job, in this process."""

    def __init__(self, name: str, settings: EtcdSettings | HubSettings, /, **node: Any) -> None:
        described = replace(describe_node({"nproc": "2"}), node_id=name, host=f"host-{name}", machine=f"machine-{name}")
        self.name = name
        described = replace(described, **node)
        self.rendezvous: EtcdRendezvous | HubRendezvous
        if isinstance(settings, HubSettings):
            self.rendezvous = HubRendezvous(settings, described)
        else:
            self.rendezvous = EtcdRendezvous(settings, described)
        self.started = False
        self.heard: list[RendezvousEvent] = []
        self._news = asyncio.Event()

    def start(self, generation: int = 0, **offers: Any) -> None:
        """Connect and join."""
        self.rendezvous.start(self._hear)
        self.started = True
        self.join(generation, **offers)

    def join(self, generation: int, counted: bool = True, **offers: Any) -> None:
        """Ask for a generation."""
        self.rendezvous.join(Joining(generation, 2, counted, offers))

    def fail(self, generation: int, reason: str = "rank 0 died") -> None:
        """Announce a failure and ask for the next generation, as an agent does."""
        self.rendezvous.announce_failure(generation, reason)
        self.join(generation + 1)

    async def hear(self, kind: type[E], generation: int | None = None, within_s: float = _PATIENCE_S) -> E:
        """Wait for the next event of a kind (and generation); what came before it is dropped."""
        try:
            return await asyncio.wait_for(self._search(kind, generation), within_s)
        except asyncio.TimeoutError:
            raise AssertionError(f"{self.name} heard no {kind.__name__} within {within_s:g} s") from None

    async def finish(
        self, generation: int, outcome: Outcome = Outcome.FINISHED, code: int = 0, limit_s: float = 10.0
    ) -> int:
        """Leave."""
        return await self.rendezvous.finish(generation, outcome, code, f"{self.name} ends", limit_s)

    async def _search(self, kind: type[E], generation: int | None) -> E:
        while True:
            while self.heard:
                event = self.heard.pop(0)
                if isinstance(event, kind) and generation in (None, _generation_of(event)):
                    return event
                assert not isinstance(event, (JoinFailed, Closed)), f"{self.name} awaits {kind.__name__}, heard {event}"
            self._news.clear()
            await self._news.wait()

    def _hear(self, event: RendezvousEvent) -> None:
        self.heard.append(event)
        self._news.set()


def _generation_of(event: RendezvousEvent) -> int | None:
    return event.world.generation if isinstance(event, WorldAgreed) else getattr(event, "generation", None)


@contextlib.asynccontextmanager
async def agents(job: EtcdSettings | HubSettings, *names: str, **node: Any) -> AsyncIterator[list[Agent]]:
    """Agents to be started by the test; closed at the end."""
    made = [Agent(name, job, **node) for name in names]
    try:
        yield made
    finally:
        await asyncio.gather(*(agent.rendezvous.close() for agent in made if agent.started))


async def until(condition: Callable[[], object], within_s: float = _PATIENCE_S) -> None:
    """Wait for a condition while agents of this process go on."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within_s:g} s"
        await asyncio.sleep(0.01)


async def world_of(generation: int, *members: Agent) -> list[str]:
    """Wait until all these have agreed on a generation; the node ids in group rank order."""
    worlds = [(await agent.hear(WorldAgreed, generation)).world for agent in members]
    (order,) = {tuple(member.node_id for member in world.members) for world in worlds}
    assert [order[world.group_rank] for world in worlds] == [agent.name for agent in members]
    assert len({(world.master_addr, world.master_port, world.restart_count) for world in worlds}) == 1
    return list(order)


class Program:
    """One agent in a process of its own."""

    def __init__(self, name: str, endpoint: str, nodes: str, **conf: str) -> None:
        self.name = name
        self._arguments = [name, endpoint, nodes, json.dumps(conf)]
        self.heard: list[Heard] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> Program:
        """Start the process."""
        # Its own session, as the launcher's processes have: a signal is meant for it alone.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.agents", *self._arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def send(self, number: int) -> float:
        """Send a signal; the time on CLOCK_BOOTTIME."""
        assert self._process is not None
        self._process.send_signal(number)
        return boottime()

    def hear(self, what: str, within_s: float = _PATIENCE_S, **fields: Any) -> Heard:
        """Wait until the program told this, and return it."""
        return wait_until(lambda: self.find(what, **fields), within_s, f"{self.name}: {what} {fields}")

    def hear_world(self, *names: str, after: int = -1) -> Heard:
        """Wait for a world of just these nodes, in whatever order, later than a generation."""

        def found() -> Heard | None:
            worlds = [line for line in list(self.heard) if line["what"] == "WorldAgreed"]
            return next((w for w in worlds if sorted(w["order"]) == sorted(names) and w["generation"] > after), None)

        return wait_until(found, _PATIENCE_S, f"{self.name}: a world of {names}")

    def find(self, what: str, **fields: Any) -> Heard | None:
        """The first line of this kind, if there is one by now."""
        wanted = {"what": what, **fields}
        return next((line for line in list(self.heard) if wanted.items() <= line.items()), None)

    def ticks(self, generation: int) -> list[float]:
        """When the worker of a generation ticked."""
        return [line["at"] for line in list(self.heard) if line["what"] == "tick" and line["generation"] == generation]

    def stop(self) -> None:
        """Kill the process and read what is left."""
        if self._process is not None and self._reader is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait(10)
            self._reader.join(10)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.heard.append(json.loads(line))


@contextlib.contextmanager
def programs(endpoint: str, nodes: str, *names: str, **conf: str) -> Iterator[list[Program]]:
    """Agents in processes of their own; killed at the end."""
    made = [Program(name, endpoint, nodes, **conf) for name in names]
    try:
        yield made
    finally:
        for program in made:
            program.stop()


# --- as a program -----------------------------------------------------------------------------------------------------


def _say(what: str, **fields: Any) -> None:
    print(json.dumps({"at": boottime(), "what": what, **fields}), flush=True)


class _Worker:
    """Ticks for as long as it may, as ranks would write checkpoints."""

    def __init__(self) -> None:
        self._generation: int | None = None

    def start(self, generation: int) -> None:
        self._generation = generation

    def stop(self) -> None:
        self._generation = None

    async def tick(self) -> None:
        while True:
            if self._generation is not None:
                _say("tick", generation=self._generation)
            await asyncio.sleep(0.02)


def _rendezvous(name: str, endpoint: str, nodes: str, conf: dict[str, str]) -> EtcdRendezvous | HubRendezvous:
    least, _, most = nodes.partition(":")
    job, backend = Job(conf.pop("job", "job"), int(least), int(most or least)), conf.pop("backend", "etcd")
    node = replace(describe_node({}), node_id=name, machine=f"machine-{name}")
    if backend == "etcd":
        return EtcdRendezvous(settings_from(endpoint, job, conf, {}), node)
    host, _, port = endpoint.rpartition(":")
    meeting = Meeting(backend, host, int(port), job.job_id, job.min_nodes, job.max_nodes)
    return HubRendezvous(hub_settings_from(meeting, conf), node)


async def _run(name: str, endpoint: str, nodes: str, conf: Mapping[str, str]) -> None:
    rendezvous = _rendezvous(name, endpoint, nodes, dict(conf))
    worker, over = _Worker(), asyncio.Event()

    def hear(event: RendezvousEvent) -> None:
        if isinstance(event, WorldAgreed):
            worker.start(event.world.generation)
            _say("WorldAgreed", generation=event.world.generation, order=[m.node_id for m in event.world.members])
            return
        if isinstance(event, (PeerFailed, LeaseLost, MembershipChanged)):
            worker.stop()
        _say(type(event).__name__, **asdict(event))
        if isinstance(event, (PeerFailed, LeaseLost, MembershipChanged)):
            rendezvous.join(Joining(event.generation + 1, 1, counted=False))
        elif isinstance(event, (Closed, JoinFailed)):
            over.set()

    rendezvous.start(hear)
    rendezvous.join(Joining(0, 1))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    ticking = asyncio.ensure_future(worker.tick())
    await over.wait()
    ticking.cancel()
    await rendezvous.close()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])))
