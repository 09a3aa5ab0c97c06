"""Reports of alarms that were false, late, or never came."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs import Launcher
from support.scripts import BEATING, TWO, write


@pytest.fixture
def deep() -> Iterator[Path]:
    """A directory whose path alone is longer than a Unix socket's may be."""
    top = Path(tempfile.mkdtemp(prefix="ft-", dir="/tmp"))
    path = top / ("x" * 120)
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(top)


@pytest.mark.parametrize("runtime", [None, "deep"])
def test_F5_a_deep_tmpdir_leaves_ranks_heard(
    ftlaunch: Launcher, tmp_path: Path, deep: Path, runtime: str | None
) -> None:
    body = BEATING + "say('socket', os.environ['FTLAUNCH_SOCKET'])\nsteps(0, 5)"
    env = {"TMPDIR": str(deep), "XDG_RUNTIME_DIR": str(deep) if runtime else None}
    job = ftlaunch(write(tmp_path, body), env=env)
    assert job.wait() == 0
    address = job.out.split("socket ")[1].split()[0]
    assert len(os.fsencode(address)) <= 107
    assert job.events("training_resumed") or job.events("progress")
    assert not os.path.lexists(address), "nothing stays"


def test_F2_messages_of_a_dead_generation_are_dropped_and_counted(ftlaunch: Launcher, tmp_path: Path) -> None:
    """A rank that speaks as if it were of the generation before opens a section that nobody closes."""
    body = (
        BEATING
        + """
if GEN == 0:
    steps(0, 5)
    os.kill(os.getpid(), 9)
os.environ["FTLAUNCH_GENERATION"] = "0"
child = "from ftlaunch import heartbeat as hb; import os; hb.init(); hb.section('mine').__enter__(); hb.beat(99)"
steps(0, 5)
subprocess.run([sys.executable, "-c", child], env={**os.environ, "LOCAL_RANK": "0"}, check=True)
steps(5, 150)
"""
    )
    options = ("--section-timeout", "mine=0.5", "--max-restarts", "1")
    job = ftlaunch(*options, write(tmp_path, body))
    assert job.wait(30) == 0
    assert [event["kind"] for event in job.events("failure_detected")] == ["signal"]


def test_F4_a_stopped_rank_ends_by_sigkill_in_a_job_that_goes_on(ftlaunch: Launcher, tmp_path: Path) -> None:
    """SIGTERM would stay pending; although the rank has a handler for it, nobody waits for that."""
    body = (
        BEATING
        + """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
steps(0, 30)
if GEN == 0 and RANK == 1: os.kill(os.getpid(), signal.SIGSTOP)
if GEN == 0: signal.pause()
"""
    )
    job = ftlaunch(*TWO, "--max-restarts", "1", "--kill-grace", "30", write(tmp_path, body))
    assert job.wait(30) == 0
    (incident,) = job.incidents()
    ends = {end["rank"]: end["how"] for end in incident["consequences"]}
    assert incident["cause"]["rank"] == 1 and ends[1] == "SIGKILL"
