"""Agents of one job that ask each other, through etcd and through c10d: ``ftctl status``, and who stalls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.etcd import etcd, find_binary
from support.ftctl import Ctl
from support.jobs import Job, Launcher
from support.needs import needs_etcd
from support.nodes import Nodes, free_endpoint
from support.scripts import BEATING, write
from support.waiting import wait_until

WAITING = """
def wait_for_another(name):
    # As in a collective: asleep in one place, without any sign of work.
    path = f"{sys.argv[1]}/{name}-{RANK}"
    os.mkfifo(path)
    open(path).read()
def let_go(name, ranks):
    for rank in ranks:
        path = f"{sys.argv[1]}/{name}-{rank}"
        while not os.path.exists(path): time.sleep(0.01)
        open(path, "w").close()
"""
SCRIPT = """
import os, threading
from ftlaunch.heartbeat import beat
for step in range(1, 100000):
    beat(step=step, total=100000)
    threading.Event().wait(0.01)
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Empty where there is no etcd."""
    if find_binary() is None:
        yield ""
        return
    with etcd() as cluster:
        yield cluster.endpoints


@pytest.fixture(params=[pytest.param("etcd", marks=needs_etcd), "c10d"])
def nodes(request: pytest.FixtureRequest, ftlaunch: Launcher, endpoint: str) -> Nodes:
    """Through etcd, and through the first agent."""
    where = endpoint if request.param == "etcd" else free_endpoint()
    return Nodes(ftlaunch, where, request.param)


OPTIONS = ("--nproc-per-node", "2", "--standby", "off")


@pytest.fixture
def pair(nodes: Nodes, tmp_path: Path) -> tuple[Job, Job]:
    """Two nodes with two ranks each, at work."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    first, second = (nodes("2", *OPTIONS, script, conf="") for _ in range(2))
    wait_until(lambda: first.events("training_resumed") and second.events("training_resumed"), 40, "both train")
    return first, second


@dataclass
class Pairs:
    """Starts two nodes with two ranks each. Limits are learnt within a second, and a second long."""

    nodes: Nodes
    folder: Path

    def __call__(self, body: str, *options: str) -> tuple[Job, Job]:
        """The node of ranks 0 and 1, and the other one."""
        script = write(self.folder, BEATING + WAITING + "print('rank', RANK, flush=True)" + body)
        scratch = self.folder / "scratch"
        scratch.mkdir()
        fixed = (*OPTIONS, "--hang-floor", "1", "--max-restarts", "1")
        pair = [self.nodes("2", *fixed, *options, script, scratch, conf="") for _ in range(2)]
        wait_until(lambda: all("rank" in job.out for job in pair), 40, "ranks on both nodes")
        first, second = sorted(pair, key=lambda job: "rank 0" not in job.out and "rank 1" not in job.out)
        return first, second


@pytest.fixture
def start(nodes: Nodes, tmp_path: Path) -> Pairs:
    return Pairs(nodes, tmp_path)


def answers(job: Job) -> list[str]:
    """What the other node said whenever this one asked."""
    return [str(event["reason"]) for event in job.events("others_asked")]


@pytest.mark.parametrize("section", ["eval", "checkpoint"])
def test_a_long_section_on_one_node_is_no_stall_on_the_other(start: Pairs, section: str) -> None:
    first, second = start(f"""
steps(0, 60)
if RANK == 3:
    with hb.section({section!r}):
        while not os.path.exists(sys.argv[1] + "/done"): time.sleep(0.01)
    let_go("eval", range(3))
else: wait_for_another("eval")
steps(60, 80)
""")
    # Several limits long: asked each time.
    wait_until(lambda: sum(f"rank 3 is in section {section}" in said for said in answers(first)) >= 3, 60, first.err)
    (start.folder / "scratch" / "done").touch()
    assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    assert not first.events("failure_detected") and not second.events("failure_detected"), first.err


def test_a_rank_that_spins_is_found_on_its_own_node_by_the_rhythm_of_the_other(start: Pairs) -> None:
    # Early on the second node waits for the first: so long that its own limit will be ten times that.
    first, second = start(
        """
steps(0, 10)
if RANK == 0:
    with hb.section("eval"): time.sleep(1.5)
    let_go("early", range(1, 4))
elif GEN == 0: wait_for_another("early")
steps(10, 70)
def spin():
    while True: pass
if GEN == 0 and RANK == 3: spin()
if GEN == 0: wait_for_another("late")
""".replace("if RANK == 0:", "if GEN == 0 and RANK == 0:")
    )
    assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    (failure,) = second.events("failure_detected")
    assert (failure["kind"], failure["rank"]) == ("stall", 3), failure
    assert "holds up ranks of other nodes" in failure["reason"] and "spin (train.py:" in failure["reason"]
    (seen,) = first.events("failure_detected")
    assert seen["kind"] == "peer", seen
    silent_s = failure["monotonic"] - max(event["last_beat"] or 0 for event in second.events("progress")[:-1])
    assert silent_s < 10, "ten times the floor"
    assert len(first.events("workers_started")) == len(second.events("workers_started")) == 2
    (incident,) = second.incidents()
    assert "in spin" in "\n".join(incident["cause"]["evidence"])


def test_beyond_a_given_limit_a_rank_that_spins_is_found_while_the_others_poll(start: Pairs) -> None:
    first, second = start(
        """
steps(0, 40)
def spin():
    while True: pass
def barrier():
    while True: time.sleep(0.005)
if GEN == 0 and RANK == 3: spin()
if GEN == 0: barrier()
""",
        "--hang-timeout=5",
        "--hang-floor=60",
    )
    assert (first.wait(), second.wait()) == (0, 0), first.err + second.err
    (failure,) = second.events("failure_detected")
    assert (failure["kind"], failure["rank"]) == ("stall", 3), failure
    assert "rank 3 is the suspect" in failure["reason"] and "spin (train.py:" in failure["reason"]
    (seen,) = first.events("failure_detected")
    assert seen["kind"] == "peer", seen
    asked = [event for job in (first, second) for event in job.events("others_asked")]
    assert asked and all(event["generation"] == 0 for event in asked)


@needs_etcd
def test_a_node_whose_agent_does_not_answer_may_be_in_a_section(
    ftlaunch: Launcher, endpoint: str, tmp_path: Path
) -> None:
    body = "\nsteps(0, 60)\nif GEN == 0: wait_for_another('ever')"
    first, second = Pairs(Nodes(ftlaunch, endpoint), tmp_path)(body, "--node-timeout", "60")
    wait_until(lambda: first.events("progress") and second.events("progress"), 20)
    second.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: first.events("failure_detected"), 60)
    finally:
        second.signal(signal.SIGCONT)
    (failure,) = first.events("failure_detected")
    assert failure["kind"] == "stall" and "not all nodes have answered" in answers(first)[-1]
    silent_s = float(re.findall(r"made no step for ([\d.]+) s", failure["reason"])[0])
    assert silent_s >= 10, "ten times the floor"
    assert (first.wait(), second.wait()) == (0, 0)


def ftctl(job: Job, *arguments: str) -> str:
    ctl = Ctl(job)
    return ctl(*arguments, "--run", ctl.run)


def status(job: Job, *arguments: str) -> dict[str, Any]:
    shape: dict[str, Any] = json.loads(ftctl(job, "status", "--json", *arguments))
    return shape


def test_every_node_shows_all_nodes_and_ranks(pair: tuple[Job, Job]) -> None:
    for job, other in (pair, pair[::-1]):
        wait_until(lambda job=job: all(rank["beaten"] for rank in status(job)["ranks"]), 20)
        seen = status(job)
        assert [rank["rank"] for rank in seen["ranks"]] == [0, 1, 2, 3]
        assert all(rank["state"] == "running" and rank["step"] >= 1 for rank in seen["ranks"])
        assert [node["agent_pid"] for node in seen["nodes"]] == [job.pid, other.pid]
        assert seen["run"] == str(job.run_dir) and seen["world_size"] == 4
        text = ftctl(job, "status")
        assert "2 nodes   4 ranks" in text
        rows = [line.split()[0] for line in text.partition("RANK")[2].splitlines() if line[:1].isdigit()]
        assert rows == ["0", "1", "2", "3"]
        alone = status(job, "--this-node")
        assert len(alone["ranks"]) == 2 and [node["agent_pid"] for node in alone["nodes"]] == [job.pid]


def test_watch_goes_on_without_a_node_that_does_not_answer(pair: tuple[Job, Job]) -> None:
    first, second = pair
    argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "status", "--watch", "--json", "--interval", "0.2"]
    watching = subprocess.Popen(
        [*argv, "--run", str(first.run_dir)],
        env={**os.environ, "XDG_STATE_HOME": str(first.home / "state")},
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert watching.stdout is not None
    try:
        assert len(json.loads(watching.stdout.readline())["ranks"]) == 4
        second.signal(signal.SIGSTOP)
        seen = next(shape for shape in map(json.loads, watching.stdout) if len(shape["nodes"]) == 1)
        assert [rank["host"] for rank in seen["ranks"]] == [os.uname().nodename] * 2
        assert "1 of 2 nodes shown" in ftctl(first, "status")
        second.signal(signal.SIGCONT)
        assert next(shape for shape in map(json.loads, watching.stdout) if len(shape["ranks"]) == 4)
    finally:
        second.signal(signal.SIGCONT)
        watching.kill()
        watching.wait()
        watching.stdout.close()
