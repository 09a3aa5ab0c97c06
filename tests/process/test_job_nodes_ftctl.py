"""``ftctl exclude`` and ``stop`` on jobs of several nodes: each agent under its own host name, on both ways to meet."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.etcd import etcd
from support.ftctl import Ctl
from support.jobs import Job, Launcher
from support.needs import need_etcd
from support.nodes import Nodes, free_endpoint
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="only root can give an agent a host name of its own"
)

SCRIPT = """
import os, signal, sys, time
def save(*_):
    if os.path.exists(f"{sys.argv[1]}-slowly-{os.environ['RANK']}"): time.sleep(9)
    print("saved", flush=True)
    os._exit(7)
signal.signal(signal.SIGTERM, save)
print("up", "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "generation", os.environ["FTLAUNCH_GENERATION"],
      flush=True)
if os.path.exists(sys.argv[1]): sys.exit(0)
signal.pause()
"""


@pytest.fixture(scope="module", params=["etcd", "c10d"])
def etcd_endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """Empty for meeting without etcd."""
    if request.param == "c10d":
        yield ""
        return
    need_etcd()
    with etcd() as cluster:
        yield cluster.endpoints


class Named:
    """Starts agents of one job, each under a host name, which it remembers."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self._nodes = nodes
        self.backend = nodes.backend
        self._script = folder / "train.py"
        self._script.write_text(SCRIPT)
        self.done = folder / "done"
        self._hosts: dict[int, str] = {}

    def __call__(self, host: str, *options: str, nnodes: str = "2", conf: str = "") -> Job:
        arguments = ("--nproc-per-node", "1", "--standby", "off", *options, self._script, self.done)
        waits = f"node_timeout=5,{conf or 'last_call_timeout=20'}"
        job = self._nodes(nnodes, *arguments, conf=waits, same_machine=False, prefix=_named(host))
        self._hosts[job.pid] = host
        return job

    def ctl(self, job: Job) -> Ctl:
        """ftctl on that node."""
        return Ctl(job, _named(self._hosts[job.pid]))


def _named(host: str) -> tuple[str, ...]:
    return ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host)


@pytest.fixture
def nodes(etcd_endpoint: str, ftlaunch: Launcher, tmp_path: Path) -> Named:
    if etcd_endpoint:
        return Named(Nodes(ftlaunch, etcd_endpoint), tmp_path)
    return Named(Nodes(ftlaunch, free_endpoint(), "c10d"), tmp_path)


def up(job: Job, generation: int, size: int = 2) -> None:
    """Wait until the rank of this agent runs in a world of that size."""
    wait_until(lambda: f" of {size} generation {generation}\n" in job.out, 30, f"generation {generation}: {job.err}")


def pair(nodes: Named, *options: str, nnodes: str = "2", conf: str = "") -> tuple[Job, Job]:
    """Two agents at work; the first one leads and, without etcd, hosts the rendezvous."""
    first = nodes("node-a", *options, nnodes=nnodes, conf=conf)
    wait_until(lambda: first.events("job_started"), 20)
    second = nodes("node-b", *options, nnodes=nnodes, conf=conf)
    up(first, 0)
    up(second, 0)
    return first, second


def test_a_spare_takes_the_place_and_the_excluded_node_stays_out_until_it_is_let_in_again(
    nodes: Named, tmp_path: Path
) -> None:
    log = tmp_path / "termination-log"
    a, b = pair(nodes, "--termination-log", str(log))
    place = "rank 0" if "rank 0" in b.out else "rank 1"
    spare = nodes("node-c")
    wait_until(lambda: spare.events("parked"), 20, "the spare is parked")
    ctl = nodes.ctl(a)
    said = ctl("exclude", "node-b", "--reason", "its fan is loud", "--run", ctl.run)
    assert "node-b is left out; node-c-" in said and "takes its place" in said
    assert b.wait(30) == 75
    assert "its fan is loud" in b.err and "excluded with ftctl on node-a: its fan is loud" in log.read_text()
    up(a, 1)
    up(spare, 1)
    assert place in spare.out
    status = ctl.status()
    assert status["excluded"] == [{"name": "node-b", "why": "excluded with ftctl on node-a: its fan is loud"}]
    assert status["restarts_counted"] == 0
    assert "left out: node-b, excluded with ftctl on node-a: its fan is loud" in ctl("status", "--run", ctl.run)
    assert nodes.ctl(spare).status()["excluded"] == status["excluded"]
    (event,) = a.events("node_excluded")
    assert event["node"] == "node-b" and "its fan is loud" in event["reason"]
    for command in ("explain", "report"):
        assert "its fan is loud" in ctl(command, ctl.run, *(("--text",) if command == "report" else ()))

    refused = nodes("node-b")
    assert refused.wait(30) == 75
    assert "this node is left out of job" in refused.err and "its fan is loud" in refused.err
    assert not refused.out

    assert "node-b is let in again" in ctl("exclude", "--undo", "node-b", "--run", ctl.run)
    assert ctl.status()["excluded"] == [] and a.events("node_readmitted")
    back = nodes("node-b")
    wait_until(lambda: back.events("parked"), 20, "the node is a spare now")
    nodes.done.touch()
    ctl("restart", "--run", ctl.run)
    assert (a.wait(30), spare.wait(30), back.wait(30)) == (0, 0, 0)


def test_the_world_shrinks_at_once_also_when_asked_on_the_node_itself(nodes: Named) -> None:
    a, b = pair(nodes, nnodes="1:2")
    ctl = nodes.ctl(b)
    assert "the job goes on with 1 node" in ctl("exclude", "node-b", "--run", ctl.run)
    assert b.wait(30) == 75
    # Without the last call of 20 s: nobody is to be waited for.
    wait_until(lambda: " of 1 generation 1\n" in a.out, 10, a.err)
    assert not a.events("node_excluded") and "node-b" in a.incidents()[0]["cause"]["reason"]


def test_too_few_are_left_only_by_force_and_another_node_fills_the_gap(nodes: Named) -> None:
    a, b = pair(nodes, conf="join_timeout=60")
    ctl = nodes.ctl(a)
    refusal = ctl("exclude", "node-b", "--run", ctl.run, code=1)
    assert "without node-b only 1 of the 2 nodes" in refusal and "--force does it all the same" in refusal
    assert ctl.status()["excluded"] == [] and ctl.status()["phase"] == "running"
    assert "until another node comes" in ctl("exclude", "node-b", "--force", "--run", ctl.run)
    assert b.wait(30) == 75
    assert "it is so already" in ctl("exclude", "node-b", "--run", ctl.run)
    replacement = nodes("node-c", conf="join_timeout=60")
    up(a, 1)
    up(replacement, 1)


def test_who_waits_in_vain_is_told_what_is_missing(nodes: Named) -> None:
    a, b = pair(nodes, conf="join_timeout=4")
    ctl = nodes.ctl(a)
    ctl("exclude", "node-b", "--force", "--run", ctl.run)
    assert (b.wait(30), a.wait(30)) == (75, 69)
    assert "not agreed within 4 s on 2 nodes: 1 of 2 nodes are there; excluded: node-b-" in a.err


def test_an_excluded_spare_goes_and_disturbs_nobody(nodes: Named) -> None:
    a, _ = pair(nodes)
    spare = nodes("node-c")
    wait_until(lambda: spare.events("parked"), 20, "the spare is parked")
    waiting = nodes.ctl(spare)
    assert "this node is a spare: ask a node at work" in waiting("restart", "--run", waiting.run, code=1)
    ctl = nodes.ctl(a)
    assert "generation 0 does without it" in ctl("exclude", "node-c", "--run", ctl.run)
    assert spare.wait(30) == 75
    assert not a.events("failure_detected")


def test_names_that_mean_nobody_or_several(nodes: Named) -> None:
    several = "--allow-multiple-agents-per-node"
    a = nodes("node-a", several)
    wait_until(lambda: a.events("job_started"), 20)
    b, c = nodes("node-b", several), nodes("node-b", several)
    up(a, 0)
    wait_until(lambda: b.events("parked") or c.events("parked"), 20)
    ctl = nodes.ctl(a)
    unknown = ctl("exclude", "node-x", "--run", ctl.run, code=1)
    assert "no node node-x in this job" in unknown and "node-a (node-a-" in unknown and "node-b (node-b-" in unknown
    ambiguous = ctl("exclude", "node-b", "--run", ctl.run, code=1)
    assert "2 agents run on host node-b, say which one: node-b-" in ambiguous
    ids = ambiguous.rpartition(": ")[2].split(", ")
    one = ids[0].strip()
    assert one in ctl("exclude", one, "--run", ctl.run)
    wait_until(lambda: b.process.poll() == 75 or c.process.poll() == 75, 30)
    assert "node x is not excluded; excluded: " + one in ctl("exclude", "--undo", "x", "--run", ctl.run, code=1)
    assert "is let in again" in ctl("exclude", "--undo", one, "--run", ctl.run)
    assert "none is" in ctl("exclude", "--undo", one, "--run", ctl.run, code=1)


def test_the_leader_can_be_excluded_but_not_the_host_of_the_rendezvous(nodes: Named) -> None:
    a, b = pair(nodes, nnodes="1:2")
    ctl = nodes.ctl(b)
    if nodes.backend == "c10d":
        refusal = ctl("exclude", "node-a", "--force", "--run", ctl.run, code=1)
        assert "node-a hosts the rendezvous" in refusal and not b.events("failure_detected")
        return
    ctl("exclude", "node-a", "--run", ctl.run)
    assert a.wait(30) == 75
    wait_until(lambda: " of 1 generation 1\n" in b.out, 15, b.err)


def test_the_rendezvous_remembers_when_agents_have_gone(nodes: Named) -> None:
    options: dict[str, Any] = {"nnodes": "2:3", "conf": "last_call_timeout=1"}
    a, b = pair(nodes, **options)
    c = nodes("node-c", **options)
    up(c, 1, 3)
    ctl = nodes.ctl(a)
    ctl("exclude", "node-b", "--run", ctl.run)
    assert b.wait(30) == 75
    up(a, 2)
    up(c, 2)
    # Whoever led, or hosted the rendezvous, is replaced.
    a.process.kill()
    a.wait()
    again = nodes("node-a", **options)
    wait_until(lambda: " of 2 " in again.out, 40, again.err)
    refused = nodes("node-b", **options)
    assert refused.wait(30) == 75
    assert "this node is left out" in refused.err


def test_stop_ends_all_nodes_in_order_and_no_spare_takes_over(nodes: Named) -> None:
    a, b = pair(nodes)
    spare = nodes("node-c")
    wait_until(lambda: spare.events("parked"), 20, "the spare is parked")
    ctl = nodes.ctl(b)
    assert "stopping on 2 nodes" in ctl("stop", "--run", ctl.run, "--reason", "the queue closes")
    assert (a.wait(30), b.wait(30), spare.wait(30)) == (143, 143, 143)
    assert "saved" in a.out and "saved" in b.out and "up" not in spare.out
    assert "stopped with ftctl on node-b: the queue closes" in a.err
    # The other one may have ended, and said why, before this one came to it.
    assert re.search("stopped with ftctl( on node-b)?: the queue closes", b.err)


def test_a_stopped_node_saves_on_when_the_meeting_point_is_gone_already(nodes: Named) -> None:
    """The job is over: nobody could go on without it, so the end of its lease ends no rank."""
    if nodes.backend != "c10d":
        pytest.skip("etcd stays")
    a, b = pair(nodes, conf="node_timeout=2,last_call_timeout=20")
    Path(f"{nodes.done}-slowly-{0 if 'rank 0' in b.out else 1}").touch()
    ctl = nodes.ctl(a)
    ctl("stop", "--run", ctl.run)
    assert a.wait(30) == 143 and "saved" not in b.out
    assert b.wait(30) == 143 and "saved" in b.out


def test_stop_of_one_node_leaves_the_job_to_the_others(nodes: Named) -> None:
    a, b = pair(nodes, nnodes="1:2", conf="last_call_timeout=5")
    ctl = nodes.ctl(b)
    assert "stopping\n" in ctl("stop", "--this-node", "--run", ctl.run)
    assert b.wait(30) == 143 and "saved" in b.out
    up(a, 1, 1)


def test_stop_reaches_also_a_node_that_could_not_be_asked(nodes: Named) -> None:
    a, b = pair(nodes)
    ctl = nodes.ctl(a)
    b.signal(signal.SIGSTOP)
    try:
        assert "1 more did not answer" in ctl("stop", "--run", ctl.run)
    finally:
        # Before its lease is over, or it would have to stop its ranks at once.
        b.signal(signal.SIGCONT)
    assert (a.wait(30), b.wait(30)) == (143, 143)
    assert "saved" in b.out, b.err


def test_stop_asked_of_a_spare_stops_the_job(nodes: Named) -> None:
    a, b = pair(nodes)
    spare = nodes("node-c")
    wait_until(lambda: spare.events("parked"), 20, "the spare is parked")
    ctl = nodes.ctl(spare)
    assert "the other nodes follow when this one has left" in ctl("stop", "--run", ctl.run)
    assert (spare.wait(30), a.wait(30), b.wait(30)) == (143, 143, 143)
    assert "saved" in a.out and "saved" in b.out


def test_stop_of_a_node_that_has_lost_the_others_ends_soon(nodes: Named) -> None:
    a, b = pair(nodes)
    ctl = nodes.ctl(a)
    # Without etcd this one takes the rendezvous with it.
    ctl("stop", "--this-node", "--run", ctl.run)
    assert a.wait(30) == 143
    wait_until(lambda: b.events("workers_stopped"), 30, "the generation is over")
    ctl = nodes.ctl(b)
    ctl("stop", "--run", ctl.run)
    assert b.wait(30) == 143
