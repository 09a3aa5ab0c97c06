"""Reports of wrong exit codes, and of failures that nobody could explain afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import cgroups
from support.jobs import Launcher
from support.scripts import TWO, wait_for_ready, write
from support.waiting import wait_until

ONCE = ("--max-restarts", "0")


@pytest.mark.parametrize(("end", "code"), [("sys.exit(0)", 0), ("os._exit(7)", 7)])
@pytest.mark.parametrize("trouble", ["records removed", "console full", "console gone"])
def test_D1_trouble_of_our_own_changes_no_exit_code(tmp_path: Path, end: str, code: int, trouble: str) -> None:
    """Neither a failure into 0 nor a success into anything else."""
    run = tmp_path / "run"
    remove = f"import shutil\nif RANK: shutil.rmtree({str(run)!r})\n"
    script = write(tmp_path, (remove if trouble == "records removed" else "") + end)
    console = {"console full": ">/dev/full 2>&1", "console gone": ">&- 2>&-"}.get(trouble, "")
    command = f"exec {sys.executable} -m ftlaunch.launcher --run-dir {run} --nproc-per-node 2 {script} {console}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("console", [">&- 2>&-", ">/dev/full 2>&1"])
def test_D1_wrong_usage_is_2_also_when_nobody_can_be_told(tmp_path: Path, console: str) -> None:
    command = f"exec {sys.executable} -m ftlaunch.launcher {tmp_path / 'nope.py'} {console}"
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == 2


def test_D2_the_code_is_that_of_the_first_failure_whatever_ends_later(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Rank 0 fails as well, when it is asked to stop because of rank 1."""
    body = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
say("ready")
if RANK == 1:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    sys.exit(75)
while True: time.sleep(1)
"""
    job = ftlaunch(*TWO, *ONCE, write(tmp_path, body), tmp_path / "go")
    wait_for_ready(job)
    (tmp_path / "go").touch()
    assert job.wait(20) == 75
    assert "the code that rank 1 ended with" in job.err


def test_D3_an_oom_kill_in_a_group_that_was_entered_just_before(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The rank enters it so late that only the kernel log can tell; the machine is not to blame."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg can't be read by this user")
    with cgroups.memory_group(64 << 20) as folder:
        body = f"""
say("ready")
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
open({str(folder / "cgroup.procs")!r}, "w").write(str(os.getpid()))
kept = [bytearray(b"x") * (1 << 20) for _ in range(400)]
"""
        job = ftlaunch(*ONCE, write(tmp_path, body), tmp_path / "go")
        job.wait_for_output("ready")
        _watched(job.pid)
        (tmp_path / "go").touch()
        assert job.wait(60) == 137
    assert "was OOM-killed by the kernel: " in job.err and "the machine" not in job.err


def test_D3_a_kill_by_somebody_else_is_told_from_our_own(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(*TWO, *ONCE, write(tmp_path, "say('ready', RANK, os.getpid())\nsignal.pause()"))
    wait_for_ready(job)
    _watched(job.pid)
    os.kill(int(job.out.split("ready 1 ")[1].split()[0]), signal.SIGKILL)
    assert job.wait(20) == 137
    block = job.err[job.err.rindex("Root Cause") :]
    assert "OOM" not in block and "was killed with SIGKILL" in block and "not by ftlaunch" in block
    assert "Stopped by the launcher (not failures):\n  rank 0 (SIGKILL)" in block


def _watched(agent: int) -> None:
    """The agent has noted where all counters stand, a moment after the ranks were started: it holds the kernel log."""

    def open_files() -> list[str]:
        folder = f"/proc/{agent}/fd"
        return [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if os.path.lexists(f"{folder}/{fd}")]

    if os.access("/dev/kmsg", os.R_OK):
        wait_until(lambda: "/dev/kmsg" in open_files(), 10)


def test_D4_a_run_that_was_cut_off_as_a_whole_is_named_by_the_next_one(ftlaunch: Launcher, tmp_path: Path) -> None:
    """One node without etcd keeps no count across agents: that is the pod's own restart policy."""
    run = tmp_path / "run"
    script = write(tmp_path, "if len(sys.argv) > 1: say('ready')\nif len(sys.argv) > 1: signal.pause()")
    job = ftlaunch("--run-dir", run, script, "wait")
    job.wait_for_output("ready")
    job.signal(signal.SIGKILL)
    job.wait()
    wait_until(lambda: not job.processes(), 10)
    again = ftlaunch("--run-dir", run, script)
    assert again.wait() == 0
    assert f"the run before in {run} was cut off: its ftlaunch, pid {job.pid}" in again.err
    assert len(list(run.glob("earlier/*/events.jsonl"))) == 1
    third = ftlaunch("--run-dir", run, script)
    assert third.wait() == 0 and "cut off" not in third.err


def test_D5_a_broken_error_file_and_muted_output_hide_nothing(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
if RANK == 1:
    for number in range(200): print("line", number, file=sys.stderr)
    open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write('{"mess')
    os._exit(5)
signal.pause()
"""
    job = ftlaunch(*TWO, *ONCE, "--redirects", "3", write(tmp_path, body))
    assert job.wait() == 5
    block = job.err[job.err.rindex("Root Cause") :]
    assert "rank      : 1" in block and '{"mess' in block and "exit code 5" in block
    assert "last 50 lines of its stderr:\n    line 150\n" in block and "    line 199\n" in block
    assert "Stopped by the launcher (not failures):\n  rank 0" in block


def test_D8_many_short_jobs_end_without_a_word(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = write(tmp_path, "pass")
    jobs = [ftlaunch(*TWO, script, env={"OMP_NUM_THREADS": "1"}) for _ in range(4)]
    assert [(job.wait(), job.err) for job in jobs] == [(0, "")] * 4
