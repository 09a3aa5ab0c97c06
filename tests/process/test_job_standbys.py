"""Standbys in a whole job: who becomes a rank and who does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.jobs import Launcher
from support.waiting import wait_until

SCRIPT = """
import os, sys, threading
from ftlaunch import heartbeat
heartbeat.beat(1)
if os.environ["FTLAUNCH_GENERATION"] == "0": threading.Event().wait()
print("trained", flush=True)
"""


@pytest.mark.parametrize("stuck", [False, True])
def test_only_a_standby_that_is_ready_becomes_a_rank(ftlaunch: Launcher, tmp_path: Path, stuck: bool) -> None:
    """One whose import does not end would never start the script, and nobody would know."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "odd.py").write_text(f"import colorsys\nif {stuck}: open({str(gate)!r}).read()\n")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = ftlaunch(
        *("--nproc-per-node", "1", "--standby", "on", "--standby-preload", "odd", script),
        env={"PYTHONPATH": str(tmp_path / "installed")},
    )
    writer = -1
    try:
        if stuck:
            # Opens for writing once the standby reads.
            wait_until(lambda: bool(job.events("training_resumed")), 30)
            writer = os.open(gate, os.O_WRONLY)
        else:
            wait_until(lambda: bool(job.events("standby_ready")), 30, "the standby is warm")
        os.kill(job.events("workers_started")[0]["pids"][0], signal.SIGKILL)
        assert job.wait(60) == 0, job.err
    finally:
        if writer >= 0:
            os.close(writer)
    assert "trained" in job.out
    assert job.events("workers_started")[1]["warm"] == (0 if stuck else 1)
    assert not job.events("standby_dropped")


def test_a_rank_from_a_standby_has_as_many_threads_as_a_cold_one(ftlaunch: Launcher, tmp_path: Path) -> None:
    """OpenMP and BLAS libraries choose the number when they are loaded: by the CPUs that they may use then.

    One rank, so that the standby imports at full speed wherever there are two CPUs.
    """
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "pools.py").write_text("import os\nthreads = len(os.sched_getaffinity(0))\n")
    script = tmp_path / "train.py"
    script.write_text("import pools\nprint('threads', pools.threads, flush=True)\n" + SCRIPT)
    job = ftlaunch(
        *("--nproc-per-node", "1", "--standby", "on", "--standby-preload", "pools", script),
        env={"PYTHONPATH": str(tmp_path / "installed")},
    )
    wait_until(lambda: bool(job.events("standby_ready")), 30, "the standby is warm")
    os.kill(job.events("workers_started")[0]["pids"][0], signal.SIGKILL)
    assert job.wait(60) == 0, job.err
    assert job.events("workers_started")[1]["warm"] == 1
    told = [line.partition("threads ")[2] for line in job.out.splitlines() if "threads " in line]
    assert told == [str(len(os.sched_getaffinity(0)))] * 2
