"""A node that is not fit for ranks steps aside, before any spawn and between generations, and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.jobs import Launcher
from support.scripts import write
from support.waiting import wait_until

DIE_ONCE = """
if GEN == 0:
    if RANK == 1: os.kill(os.getpid(), 9)
    signal.pause()
"""


def test_failed_check_keeps_ranks_from_being_started(ftlaunch: Launcher, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    check = "echo looking; echo disk broken; exit 1"
    job = ftlaunch("--health-check", check, "--termination-log", log, write(tmp_path, "print('ran')"))
    assert job.wait() == 75
    reason = "this node is unhealthy: health check: disk broken (exit code 1)"
    assert reason in job.err and log.read_text() == f"{reason}\n"
    assert job.events("workers_started") == [] and "ran" not in job.out
    assert "Traceback" not in job.err


def test_check_is_run_before_each_generation_when_no_rank_is_left(ftlaunch: Launcher, tmp_path: Path) -> None:
    """It passes once. The second time it sees no process of the old generation, and its reason ends the job."""
    seen = tmp_path / "seen"
    look = "cat /proc/[0-9]*/comm | grep -c ^rank-"
    check = f"echo x >>{seen}; test $(wc -l <{seen}) -lt 2 || {{ echo sick with $({look}) ranks; exit 3; }}"
    rename = "open('/proc/self/comm', 'w').write('rank-' + os.environ['RANK'])\n"
    script = write(tmp_path, rename + DIE_ONCE)
    log = tmp_path / "termination-log"
    job = ftlaunch("--nproc-per-node=2", "--max-restarts=3", "--health-check", check, "--termination-log", log, script)
    assert job.wait() == 75
    assert [event["generation"] for event in job.events("workers_started")] == [0]
    assert seen.read_text() == "x\nx\n"
    assert log.read_text().startswith("this node is unhealthy: health check: sick with 0 ranks (exit code 3)")
    assert "this node is unhealthy" in job.err


def test_check_that_passes_lets_the_job_go_on(ftlaunch: Launcher, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    job = ftlaunch(
        "--nproc-per-node=2", "--max-restarts=1", "--health-check", f"echo x >>{seen}", write(tmp_path, DIE_ONCE)
    )
    assert job.wait() == 0, job.err
    assert [event["generation"] for event in job.events("workers_started")] == [0, 1]
    assert seen.read_text() == "x\nx\n"


def test_check_that_does_not_end_is_killed_with_all_that_it_started(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(
        "--health-check", "sleep 600 & sleep 601", "--health-check-timeout=300ms", write(tmp_path, "print('ran')")
    )
    assert job.wait(20) == 75
    assert "health check: did not end within 0.3 s" in job.err
    assert job.events("workers_started") == []


def test_job_can_be_stopped_while_its_check_runs(ftlaunch: Launcher, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    job = ftlaunch("--health-check", f"touch {flag}; sleep 600", write(tmp_path, "print('ran')"))
    wait_until(flag.exists, 20)
    job.signal(signal.SIGTERM)
    assert job.wait(10) == 143


def test_check_sees_the_launchers_environment(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch("--health-check", 'test "$SITE" = north', write(tmp_path, ""), env={"SITE": "north"})
    assert job.wait() == 0, job.err


def test_too_little_disk_gives_the_node_up(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch("--min-free-disk=900000G", write(tmp_path, "print('ran')"))
    assert job.wait() == 75
    assert "disk: only" in job.err and "needed are" in job.err
    assert job.events("workers_started") == []


def test_missing_checkpoint_directory_is_no_illness(ftlaunch: Launcher, tmp_path: Path) -> None:
    """It is made by the first save; what counts is the disk below it."""
    job = ftlaunch("--checkpoint-dir", tmp_path / "not" / "yet", write(tmp_path, ""))
    assert job.wait() == 0, job.err


def test_termination_log_tells_why_any_job_failed(ftlaunch: Launcher, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    job = ftlaunch("--max-restarts=0", "--termination-log", log, write(tmp_path, "raise ValueError('no data')"))
    assert job.wait() == 1
    assert "ValueError: no data" in log.read_text()


def test_termination_log_tells_of_a_wrong_command_line_where_kubernetes_looks(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    elsewhere = (
        f"from ftlaunch.launcher.health import termination_log as at; at.choose_path.__defaults__ = ({str(log)!r},)"
    )
    main = "from ftlaunch.launcher.__main__ import main; main()"
    argv = [sys.executable, "-c", f"{elsewhere}\n{main}", "--no-such-option", "train.py"]
    assert subprocess.run(argv, capture_output=True, timeout=30).returncode == 2 and not log.exists()
    log.touch()
    done = subprocess.run(argv, capture_output=True, timeout=30)
    assert done.returncode == 2 and log.read_bytes() == done.stderr and b"--no-such-option" in done.stderr


def test_termination_log_that_cannot_be_written_costs_one_line(ftlaunch: Launcher, tmp_path: Path) -> None:
    log = tmp_path / "missing" / "termination-log"
    job = ftlaunch("--max-restarts=0", "--termination-log", log, write(tmp_path, "raise SystemExit(3)"))
    assert job.wait() == 3
    assert f"the reason could not be written to {log}" in job.err
    job = ftlaunch("--termination-log", os.curdir, write(tmp_path, ""))
    assert job.wait() == 2 and "--termination-log must be a file" in job.err
