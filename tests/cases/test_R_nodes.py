"""Reports of several nodes that lost, misjudged or waited for each other: whole jobs on a real etcd, on one machine."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import procfs
from support.etcd import EtcdCluster, etcd
from support.jobs import Job, Launcher
from support.needs import needs_etcd
from support.nodes import Nodes, free_endpoint
from support.scripts import wait_for_ready, write
from support.waiting import wait_until

pytestmark = needs_etcd
UP = """
WORLD = int(os.environ["WORLD_SIZE"])
say("up", RANK, "of", WORLD, "in", GEN, "at", os.environ["MASTER_ADDR"])
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with etcd() as started:
        yield started


@pytest.fixture
def nodes(ftlaunch: Launcher, cluster: EtcdCluster) -> Nodes:
    return Nodes(ftlaunch, cluster.endpoints)


@pytest.fixture(params=["etcd", "c10d"])
def either(request: pytest.FixtureRequest, ftlaunch: Launcher, cluster: EtcdCluster) -> Nodes:
    """Through etcd, and through the first agent."""
    if request.param == "etcd":
        return Nodes(ftlaunch, cluster.endpoints)
    return Nodes(ftlaunch, free_endpoint(), "c10d")


def wait_for(job: Job, text: str) -> None:
    """Fails with what the job said when it ends or nothing comes."""
    wait_for_ready(job, 1, text)


def test_R2_the_others_go_on_without_a_silent_node_and_take_it_back(either: Nodes, tmp_path: Path) -> None:
    """A stopped agent cannot end its ranks: its guardian does, before the others go on."""
    script = write(tmp_path, UP + "if GEN < 2: signal.pause()")
    first, second = either("1:2", script, hosts=True), either("1:2", script, hosts=False)
    for job in (first, second):
        wait_for(job, "of 2 in 0")
    (old,) = second.events("workers_started")[0]["pids"]
    second.signal(signal.SIGSTOP)
    wait_until(lambda: first.events("failure_detected"), 40, "the others know")
    assert not procfs.alive(old), "a rank lives on although the others were told that it does not"
    wait_for(first, "up 0 of 1 in 1")
    second.signal(signal.SIGCONT)
    assert (first.wait(40), second.wait(40)) == (0, 0)
    assert "of 2 in 2" in first.out and "of 2 in 2" in second.out and "in 1 " not in second.out
    assert not Path(f"/proc/{old}").exists()
    (failed, *_) = second.events("failure_detected")
    assert failed["kind"] == "lease", "not its own: the deaths come after it"
    assert re.search("this agent stood still for|the others have given this node up", failed["reason"])


def test_R11_R7_a_late_node_is_taken_in_and_never_finds_the_job_closed(nodes: Nodes, tmp_path: Path) -> None:
    """Enough nodes begin after the last call; one more makes a round that counts as no restart. Addresses, no names."""
    script = write(tmp_path, UP + "if WORLD == 1: signal.pause()")
    first = nodes("1:2", "--max-restarts", "0", script)
    wait_for(first, "up 0 of 1 in 0 at 127.0.0.1")
    second = nodes("1:2", "--max-restarts", "0", script)
    assert (first.wait(40), second.wait(40)) == (0, 0)
    assert "up 0 of 2 in 1 at 127.0.0.1" in first.out and "up 1 of 2 in 1 at 127.0.0.1" in second.out


def test_R14_a_finished_node_may_vanish_while_it_waits_for_the_others(
    nodes: Nodes, cluster: EtcdCluster, tmp_path: Path
) -> None:
    """Its ranks were done: the code of the others is theirs."""
    script = write(tmp_path, UP + "if RANK == 2:\n    while not os.path.exists(sys.argv[1]): time.sleep(0.01)")
    jobs = [nodes("3", script, tmp_path / "go") for _ in range(3)]
    finished = f"/ftlaunch/{nodes.job_id}/finish/"
    wait_until(lambda: len(cluster.members[0].keys(finished)) == 2, 30, "two have finished, and said so")
    done = [job for job in jobs if job.events("workers_stopped")]
    (last,) = (job for job in jobs if job not in done)
    assert all(job.process.poll() is None for job in jobs), "they wait for the third"
    done[0].signal(signal.SIGKILL)
    done[0].wait()
    (tmp_path / "go").touch()
    assert (done[1].wait(40), last.wait(40)) == (0, 0)
    assert len(last.events("workers_started")) == 1


def test_R10_D8_a_spare_that_was_never_needed_ends_with_0(nodes: Nodes, tmp_path: Path) -> None:
    script = write(tmp_path, UP + "while not os.path.exists(sys.argv[1]): time.sleep(0.01)")
    jobs = [nodes("1:2", script, tmp_path / "go") for _ in range(2)]
    for job in jobs:
        wait_for(job, "of 2 in ")
    spare = nodes("1:2", script, tmp_path / "go")
    wait_until(lambda: spare.events("parked"), 20)
    (tmp_path / "go").touch()
    assert [job.wait(40) for job in (*jobs, spare)] == [0, 0, 0]
    assert "up" not in spare.out and "Traceback" not in spare.err and "FAILED" not in spare.err
