"""Limits that somebody has set for the whole process: one line before anything is started, or a job that copes."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from support.jobs import Job, Launcher
from support.waiting import wait_until


def started(ftlaunch: Launcher, script: Path, limit: str, *options: str) -> Job:
    """With a limit as ``ulimit`` sets it."""
    return ftlaunch(*options, script, prefix=("sh", "-c", f'ulimit {limit} && exec "$@"', "sh"))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import os; print('up', os.environ['RANK'])\n")
    return path


@pytest.mark.parametrize(
    ("limit", "ranks", "told"),
    [
        ("-n 10", 2, "too few open files"),
        ("-n 16", 2, "too few open files"),
        ("-n 24", 8, "too few open files"),
        ("-n 60", 8, "8 ranks need about 80, 60 are allowed"),
        ("-f 1", 2, "files may have at most"),
    ],
)
def test_limit_that_no_job_fits_in_is_one_line_and_2(
    ftlaunch: Launcher, script: Path, limit: str, ranks: int, told: str
) -> None:
    job = started(ftlaunch, script, limit, "--nproc-per-node", str(ranks))
    assert job.wait() == 2
    assert job.err.startswith("ftlaunch: ") and job.err.count("\n") == 1
    assert told in job.err and "(ulimit -" in job.err
    assert job.out == "" and job.run_dir is None


def test_limit_that_is_just_enough_is_enough_but_leaves_no_room_for_standbys(
    ftlaunch: Launcher, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import os
from ftlaunch import heartbeat
heartbeat.beat(1)
if os.environ["FTLAUNCH_GENERATION"] == "0": os.kill(os.getpid(), 9)
print("done", os.environ["RANK"])
""")
    # 80 for eight ranks, and three for what a shell or a test runner has left open.
    job = started(ftlaunch, script, "-n 88", "--nproc-per-node", "8")
    assert job.wait() == 0, job.err
    assert job.out.count("done") == 8
    assert "no standbys: too few open files" in job.err


def test_ranks_that_were_killed_are_no_failures_when_nothing_can_be_opened(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import signal; print('up', flush=True); signal.pause()\n")
    job = ftlaunch("--nproc-per-node", "4", "--standby", "off", "--max-restarts", "1", script)
    wait_until(lambda: job.out.count("up") == 4, 30, job.err)
    used = len(os.listdir(f"/proc/{job.pid}/fd"))
    resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (used, used))
    os.kill(job.events("workers_started")[0]["pids"][1], signal.SIGKILL)
    assert job.wait() in (2, 137)
    assert "failed by themselves" not in job.err
    assert "Traceback" not in job.err
