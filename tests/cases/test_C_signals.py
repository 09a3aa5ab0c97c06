"""Reports of stops that came too early, too late, or to the wrong process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import procfs
from support.jobs import Launcher
from support.needs import need_pid_namespace
from support.scripts import TWO, wait_for_ready, write


@pytest.mark.parametrize(("scope", "child"), [("leader", "None"), ("group", "-15")])
def test_C3_who_gets_the_polite_signal(ftlaunch: Launcher, tmp_path: Path, scope: str, child: str) -> None:
    """A loader worker of the rank lives while the rank saves; with the other scope it gets the signal too."""
    body = """
child = subprocess.Popen(["sleep", "600"])
def save(*_):
    deadline = time.monotonic() + 0.5
    while child.poll() is None and time.monotonic() < deadline: time.sleep(0.01)
    open(sys.argv[1], "w").write(str(child.returncode))
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
say("ready")
while True: time.sleep(1)
"""
    job = ftlaunch("--signal-scope", scope, write(tmp_path, body), tmp_path / "seen")
    job.wait_for_output("ready")
    job.signal(signal.SIGTERM)
    assert job.wait(30) == 0
    assert (tmp_path / "seen").read_text() == child


def test_C1_torchruns_variable_sets_the_time_to_save(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: say('asked'))\nsay('ready')\nwhile True: time.sleep(1)"
    job = ftlaunch(write(tmp_path, body), env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0.3"})
    job.wait_for_output("ready")
    job.signal(signal.SIGTERM)
    assert job.wait(20) == 143
    assert "asked" in job.out


def test_C4_a_wrapper_that_execs_passes_the_signal_to_the_program(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = write(tmp_path, "signal.signal(15, lambda *_: sys.exit(0))\nsay('ready')\nwhile True: time.sleep(1)")
    wrapper = tmp_path / "wrap.sh"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    job = ftlaunch("--no-python", wrapper, script)
    job.wait_for_output("ready")
    job.signal(signal.SIGTERM)
    assert job.wait(20) == 0


def test_C7_the_end_of_a_rank_is_seen_at_once(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Far below the seconds of a poll, whichever rank it is."""
    body = "if RANK == 1: say('at', time.monotonic()); os.kill(os.getpid(), 9)\nsignal.pause()"
    job = ftlaunch(*TWO, "--max-restarts", "0", write(tmp_path, body))
    assert job.wait(20) == 137
    died = float(job.out.split("at ")[1].split()[0])
    assert job.events("failure_detected")[0]["monotonic"] - died < 1.0


@pytest.mark.parametrize(("inner", "told"), [("{}; true", True), ("exec {}", False)])
def test_C8_a_shell_as_pid_1_is_told_of(tmp_path: Path, inner: str, told: bool) -> None:
    """It would not pass SIGTERM on: nothing that ftlaunch can mend, so it says so once."""
    command = f"{sys.executable} -m ftlaunch.launcher {write(tmp_path, 'pass')}"
    argv = [*need_pid_namespace(), "sh", "-c", inner.format(command)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert ("as PID 1, which passes no SIGTERM on" in done.stderr) is told
    assert ('sh -c "exec ftlaunch' in done.stderr) is told


def test_C2_a_signal_ends_a_job_that_is_just_recovering(ftlaunch: Launcher, tmp_path: Path) -> None:
    """No restart follows, and nothing is left, also when it comes while the old generation is being stopped."""
    body = """
signal.signal(signal.SIGTERM, lambda *_: say("asked"))
say("ready")
if RANK == 1:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    os.kill(os.getpid(), 9)
while True: time.sleep(1)
"""
    job = ftlaunch(*TWO, "--kill-grace", "1", write(tmp_path, body), tmp_path / "go")
    wait_for_ready(job)
    (tmp_path / "go").touch()
    job.wait_for_output("asked")
    job.signal(signal.SIGTERM)
    assert job.wait(20) == 143
    assert len(job.events("workers_started")) == 1
    assert not procfs.alive(job.pid) and not job.processes()


def test_C2_a_launcher_that_was_started_with_signals_blocked_still_hears_them(tmp_path: Path) -> None:
    """Some supervisors leave their own mask to what they start; the ranks do not get it either."""
    show = "say('ready', open('/proc/self/status').read().split('SigBlk:')[1].split()[0])\nsignal.pause()"
    blocking = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGCHLD])\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'ftlaunch.launcher', sys.argv[1]])\n"
    )
    argv = [sys.executable, "-c", blocking, str(write(tmp_path, show))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        try:
            assert job.stdout is not None and job.stdout.readline().split() == ["[default0]:ready", "0" * 16]
            job.send_signal(signal.SIGTERM)
            assert job.wait(20) == 143
        finally:
            job.kill()
