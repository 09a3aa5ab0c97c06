"""Reports of what outlived its launcher, its rank or its generation."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support import procfs
from support.jobs import Launcher
from support.scripts import TWO, wait_for_ready, write
from support.waiting import wait_until


def test_A2_agent_keeps_no_zombies_of_what_escaped(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
agent = os.getppid()
def children():
    pids = []
    for task in os.listdir(f"/proc/{agent}/task"):
        pids += open(f"/proc/{agent}/task/{task}/children").read().split()
    return pids
def state(pid):
    try: return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError: return ""
if GEN == 0:
    subprocess.run(["sh", "-c", "(setsid sleep 600 &) ; (setsid true &) ; exit 0"])
    if RANK == 1: os.kill(os.getpid(), 9)
    signal.pause()
# A rank that has ended stays a zombie until the generation is over, so that its number stays ours: none ends before.
while RANK and not os.path.exists(sys.argv[1]): time.sleep(0.01)
if RANK == 0:
    deadline = time.monotonic() + 10
    while "Z" in map(state, children()) and time.monotonic() < deadline: time.sleep(0.01)
    say("zombies", [pid for pid in children() if state(pid) == "Z"])
    open(sys.argv[1], "w").close()
"""
    job = ftlaunch(*TWO, write(tmp_path, body), tmp_path / "seen")
    assert job.wait() == 0
    assert "zombies []" in job.out


def test_A3_ranks_are_children_of_the_agents_main_thread(ftlaunch: Launcher, tmp_path: Path) -> None:
    """A parent-death signal fires when the *thread* that forked ends (prctl(2)); the main one lives as the agent."""
    body = """
if GEN == 0 and RANK == 1: os.kill(os.getpid(), 9)
if GEN == 0: signal.pause()
say("ready")
signal.pause()
"""
    job = ftlaunch(*TWO, write(tmp_path, body))
    wait_for_ready(job)
    of_main_thread = set(map(int, Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()))
    assert set(job.events("workers_started")[1]["pids"]) <= of_main_thread


def test_A3_the_next_start_ends_what_a_killed_agent_and_its_guardian_left(ftlaunch: Launcher, tmp_path: Path) -> None:
    """``pkill -9 ftlaunch`` takes the guardian, too: then what had left its rank's session is found by its mark."""
    sleeper = "subprocess.Popen(['sleep', '600'], start_new_session=True)"
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    job = ftlaunch(write(tmp_path, f"say('pid', {sleeper}.pid)\nsignal.pause()"), env=state)
    job.wait_for_output("pid ")
    escaped = int(job.out.split("pid ")[1].split()[0])
    guardian = next(pid for pid in procfs.children(job.pid) if "guardian" in procfs.describe(pid))
    os.kill(guardian, signal.SIGSTOP)
    job.signal(signal.SIGKILL)
    job.wait()
    os.kill(guardian, signal.SIGKILL)
    wait_until(lambda: not procfs.alive(guardian), 10)
    assert procfs.alive(escaped)
    later = ftlaunch(write(tmp_path, "say(1)", "later.py"), env=state)
    assert later.wait() == 0
    assert not procfs.alive(escaped) and f"pid {escaped} (sleep)" in later.err, later.err


def test_A3_a_start_leaves_jobs_that_run_alone(ftlaunch: Launcher, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    running = ftlaunch(write(tmp_path, "say('ready', os.getpid())\nsys.exit(signal.sigwait([15]))"), env=state)
    running.wait_for_output("ready ")
    assert ftlaunch(write(tmp_path, "pass", "later.py"), env=state).wait() == 0
    assert procfs.alive(int(running.out.split("ready ")[1].split()[0]))
    running.signal(signal.SIGTERM)
    assert running.wait(20) == 143


def test_A5_a_signal_while_starting_is_not_lost(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The handlers come before the imports: as PID 1 a process without them ignores SIGTERM."""
    job = ftlaunch(*TWO, write(tmp_path, "signal.pause()"))

    def catches_sigterm() -> bool:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{job.pid}/status").read_text().splitlines())
        return bool(int(fields["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(catches_sigterm, 10)
    job.signal(signal.SIGTERM)
    assert job.wait(20) == 143
    assert "Traceback" not in job.err
