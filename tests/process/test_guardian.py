"""When the agent is killed, nothing that carries its marker lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch.heartbeat import flags
from ftlaunch.launcher.processes import guardian
from ftlaunch.launcher.processes.guard import Guard
from ftlaunch.launcher.ranks.wires import Flags
from ftlaunch.rendezvous.common.clock import boottime
from support.waiting import wait_until

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


@pytest.fixture
def page() -> Iterator[Flags]:
    made = Flags()
    yield made
    made.close()


def test_ranks_of_an_agent_that_does_not_act_are_ended_when_their_time_is_over(page: Flags) -> None:
    """Once for each time; the guardian then stays, for the agent may go on."""
    marker = uuid.uuid4().hex
    guard = Guard(marker, "", page.writable)
    guard.start()
    sleepers = [subprocess.Popen(["sleep", "60"], env={**os.environ, "FTLAUNCH_MARK": marker})]
    page.ranks_gone_by(boottime() - 1.0)
    assert sleepers[0].wait(20) == -signal.SIGKILL
    wait_until(page.take_ended)
    assert not page.take_ended(), "told once"
    sleepers.append(subprocess.Popen(["sleep", "60"], env={**os.environ, "FTLAUNCH_MARK": marker}))
    assert guard.pid is not None
    # Longer than it takes to look again.
    with pytest.raises(subprocess.TimeoutExpired):
        sleepers[1].wait(guardian.LOOK_S + 0.5)
    page.ranks_gone_by(boottime() + 0.1)
    assert sleepers[1].wait(20) == -signal.SIGKILL
    pid = guard.pid
    guard.dismiss()
    os.waitpid(pid, 0)


def test_a_moment_that_is_moved_on_or_taken_away_ends_nobody(page: Flags) -> None:
    marker = uuid.uuid4().hex
    guard = Guard(marker, "", page.writable)
    guard.start()
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "FTLAUNCH_MARK": marker}) as sleeper:
        for _ in range(20):
            page.ranks_gone_by(boottime() + 1.0)
            with pytest.raises(subprocess.TimeoutExpired):
                sleeper.wait(0.1)
        page.ranks_gone_by(0.0)
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(1.5)
        pid = guard.pid or 0
        guard.dismiss()
        os.waitpid(pid, 0)
        assert sleeper.poll() is None and not page.take_ended()
        sleeper.kill()


def test_the_guardian_reads_the_page_as_the_agent_writes_it() -> None:
    """It cannot import what tells where."""
    assert (guardian.GONE_BY, guardian.ENDED_AT) == (flags.GONE_BY, flags.ENDED_AT)


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
