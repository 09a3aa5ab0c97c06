"""When the agent is killed, nothing that carries its marker lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ftlaunch.launcher.processes import guardian
from ftlaunch.launcher.processes.guard import Guard

AGENT = """
import subprocess, sys, os
from ftlaunch.launcher.processes.guard import Guard
guard = Guard(sys.argv[1], sys.argv[2])
guard.start()
environment = {**os.environ, "FTLAUNCH_MARK": sys.argv[1]}
escapee = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
print(guard.pid, escapee.pid, flush=True)
if sys.stdin.readline() == "end\\n":
    escapee.kill(); escapee.wait()
    guard.dismiss()
"""


@pytest.fixture
def agent(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "runtime").mkdir()
    command = [sys.executable, "-c", AGENT, uuid.uuid4().hex, str(tmp_path / "runtime")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def pidfds(agent: subprocess.Popen[str]) -> list[int]:
    assert agent.stdout is not None
    return [os.pidfd_open(int(pid)) for pid in agent.stdout.readline().split()]


def wait_for(pidfd: int) -> None:
    """Return when the process is dead; pytest's time-out is the bound."""
    import select

    assert select.select([pidfd], [], [], 20)[0], "still alive"
    os.close(pidfd)


def test_guardian_sweeps_after_a_killed_agent_and_goes_away(agent: subprocess.Popen[str], tmp_path: Path) -> None:
    guard, escapee = pidfds(agent)
    agent.kill()
    wait_for(escapee)
    wait_for(guard)
    assert not (tmp_path / "runtime").exists()
    agent.communicate()


def test_guardian_outlives_what_a_terminal_sends_to_the_whole_group(agent: subprocess.Popen[str]) -> None:
    guard, escapee = pidfds(agent)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.pidfd_send_signal(guard, signum)
    agent.kill()
    wait_for(escapee)
    wait_for(guard)
    agent.communicate()


def test_dismissed_guardian_leaves_the_runtime_directory_alone(agent: subprocess.Popen[str], tmp_path: Path) -> None:
    guard, escapee = pidfds(agent)
    agent.communicate("end\n")
    wait_for(escapee)
    wait_for(guard)
    assert (tmp_path / "runtime").exists() and agent.returncode == 0


def test_a_killed_guardian_is_replaced() -> None:
    guard = Guard(uuid.uuid4().hex, "")
    guard.start()
    first = guard.pid
    assert first is not None and not guard.check()
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert guard.check() and guard.pid != first
    pid = guard.pid or 0
    second = os.pidfd_open(pid)
    guard.dismiss()
    wait_for(second)
    # An agent that dismisses its guardian ends at once, and leaves the reaping to init.
    os.waitpid(pid, 0)


def test_marker_must_match_exactly() -> None:
    marker = uuid.uuid4().hex
    environment = {**os.environ, "FTLAUNCH_MARK": marker + "0"}
    bystander = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"], env=environment, stdin=-1, stdout=-1
    )
    assert bystander.stdout is not None and bystander.stdout.readline()
    assert not guardian.carries(bystander.pid, marker) and guardian.carries(bystander.pid, marker + "0")
    guardian.sweep(marker)
    assert bystander.poll() is None
    bystander.communicate(b"\n")
