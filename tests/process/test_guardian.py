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
from support import procfs
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


class Watched:
    """An agent's side, played by the test: a page, a guardian that looks at it, and children."""

    def __init__(self) -> None:
        self.page = Flags()
        self.marker = uuid.uuid4().hex
        self.guard = Guard(self.marker, "", self.page.writable)
        self.guard.start()
        self.children: list[subprocess.Popen[bytes]] = []

    def child(self, **more: str) -> subprocess.Popen[bytes]:
        """Leads a group of its own, as ranks do."""
        environment = {**os.environ, "FTLAUNCH_MARK": self.marker, **more}
        self.children.append(subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True))
        return self.children[-1]

    def rank(self, **more: str) -> subprocess.Popen[bytes]:
        """A child that the page calls a rank, now the only one."""
        made = self.child(FTLAUNCH_GENERATION="0", **more)
        self.page.ranks_are([made.pid])
        return made

    def close(self) -> None:
        pid = self.guard.pid or 0
        self.guard.dismiss()
        os.waitpid(pid, 0)
        for child in self.children:
            child.kill()
            child.wait()
        self.page.close()


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def lives_on(child: subprocess.Popen[bytes], seconds: float) -> bool:
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(seconds)
    return True


def test_ranks_that_are_left_when_their_time_is_over_are_ended(watched: Watched) -> None:
    """Once for each time; the guardian then stays, for the agent may go on."""
    first = watched.rank()
    watched.page.ranks_gone_by(boottime() - 1.0)
    assert first.wait(20) == -signal.SIGKILL
    wait_until(watched.page.take_ended)
    assert not watched.page.take_ended(), "told once"
    second = watched.rank()
    # Longer than it takes to look again.
    assert lives_on(second, guardian.LOOK_S + 0.5)
    watched.page.ranks_gone_by(boottime() + 0.1)
    assert second.wait(20) == -signal.SIGKILL


def test_a_moment_that_is_moved_on_or_taken_away_ends_nobody(watched: Watched) -> None:
    rank = watched.rank()
    for _ in range(20):
        watched.page.ranks_gone_by(boottime() + 1.0)
        assert lives_on(rank, 0.1)
    watched.page.ranks_gone_by(0.0)
    assert lives_on(rank, 1.5) and not watched.page.take_ended()


def test_a_rank_is_known_by_its_pid_and_what_it_started_by_the_marker(watched: Watched) -> None:
    """A rank may have overwritten its environment, as setproctitle does."""
    script = (
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '60'], start_new_session=True)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    environment = {**os.environ, "FTLAUNCH_MARK": watched.marker, "FTLAUNCH_GENERATION": "0"}
    starter = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=-1, start_new_session=True)
    assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
    (escapee,) = (pid for pid in procfs.carrying(f"FTLAUNCH_MARK={watched.marker}") if pid != starter.pid)
    nameless = watched.child(FTLAUNCH_MARK="", FTLAUNCH_GENERATION="")
    watched.children.append(starter)
    watched.page.ranks_are([nameless.pid, starter.pid])
    watched.page.ranks_gone_by(boottime() - 1.0)
    assert [process.wait(20) for process in (nameless, starter)] == [-signal.SIGKILL] * 2
    wait_until(lambda: not procfs.alive(escapee))
    starter.stdout.close()


def test_what_is_the_agents_own_is_left_alone(watched: Watched) -> None:
    """Standbys and checks of the node: the agent may go on. And whoever has the pid of a rank by now, elsewhere."""
    standby = watched.child(FTLAUNCH_GENERATION="0", FTLAUNCH_STANDBY_FD="7")
    check = watched.child()
    rank = watched.rank()
    watched.page.ranks_are([os.getppid(), rank.pid])
    watched.page.ranks_gone_by(boottime() - 1.0)
    assert rank.wait(20) == -signal.SIGKILL
    wait_until(watched.page.take_ended)
    assert standby.poll() is None and check.poll() is None


def test_nobody_was_ended_where_no_rank_ran(watched: Watched) -> None:
    """A spare that was stopped must not have its first failure taken for this."""
    watched.page.ranks_gone_by(boottime() - 1.0)
    standby = watched.child(FTLAUNCH_GENERATION="0", FTLAUNCH_STANDBY_FD="7")
    assert lives_on(standby, guardian.LOOK_S + 0.5)
    assert not watched.page.take_ended()


def test_the_guardian_reads_the_page_as_the_agent_writes_it() -> None:
    """It cannot import what tells where."""
    assert (guardian.GONE_BY, guardian.ENDED_AT, guardian.RANKS) == (flags.GONE_BY, flags.ENDED_AT, flags.RANKS)
    page = Flags()
    try:
        page.ranks_gone_by(3.5)
        page.ranks_are(range(1, 5000))
        moment, pids = guardian.read_page(page.writable)
        assert moment == 3.5 and pids[:3] == (1, 2, 3) and len(pids) > 1000, "more than a node has"
        page.ranks_are(())
        assert guardian.read_page(page.writable) == (3.5, ())
    finally:
        page.close()


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
