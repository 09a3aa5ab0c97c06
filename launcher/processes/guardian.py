"""The agent's last will: kills what carries the run's marker when the agent itself was killed.

Run by path with ``python -I -S``; standard library only, a few MB, one per agent. It blocks on a pipe whose write end
lives only in the agent. ``done`` on the pipe means that the agent ended in order; end of file without it means that
the agent is gone. Ranks die of their own death pipe and parent-death signal at the same moment; the guardian is for
what they have started: data-loader workers, daemons, setsid escapees. The agent starts it with the
signals of terminals and supervisors blocked.

With several nodes it also ends the ranks that are left when the other nodes may go on without this one: those of an
agent that is stopped, or whose teardown takes too long. When that is, and which processes are ranks, stands in the page
that :mod:`ftlaunch.heartbeat.flags` describes.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "FTLAUNCH_MARK"
SWEEP_LIMIT_S = 10.0
PAUSE_S = 0.02
LOOK_S = 2.0
# As in heartbeat/flags.py, which a file that is run by path cannot import.
GONE_BY, ENDED_AT, RANKS = 8, 16, 24
_PAGE_BYTES = 4096
_DOUBLE = struct.Struct("d")


def main(marker: str, runtime_dir: str, page: int | None) -> int:
    """Wait for the agent's end, then sweep. ``page``: a descriptor, with several nodes. Returns 0."""
    in_order = agent_ended_in_order() if page is None else watched_until_the_end(marker, page, os.getppid())
    if not in_order:
        sweep(marker)
        if runtime_dir:
            shutil.rmtree(runtime_dir, ignore_errors=True)
    return 0


def watched_until_the_end(marker: str, page: int, agent: int) -> bool:
    """As :func:`agent_ended_in_order`; meanwhile ranks that are left when their time is over are ended."""
    acted_on = 0.0
    while True:
        (gone_by, pids), now = read_page(page), time.clock_gettime(time.CLOCK_BOOTTIME)
        bound = gone_by not in (0.0, acted_on)
        if bound and now >= gone_by:
            # Read once more: a moment that was just being written is no moment.
            if read_page(page) != (gone_by, pids):
                continue
            acted_on = gone_by
            if end_ranks(pids, agent, marker):
                os.pwrite(page, _DOUBLE.pack(now), ENDED_AT)
        # The moment may be set, or moved to an earlier one, while we wait.
        elif select.select([0], [], [], min(LOOK_S, gone_by - now) if bound else LOOK_S)[0]:
            return agent_ended_in_order()


def read_page(page: int) -> tuple[float, tuple[int, ...]]:
    """By when the ranks must be gone, 0.0 for never, and their pids."""
    data = os.pread(page, _PAGE_BYTES, 0)
    (moment,), (count,) = _DOUBLE.unpack_from(data, GONE_BY), struct.unpack_from("I", data, RANKS)
    return float(moment), struct.unpack_from(f"{min(count, len(data) // 4)}I", data, RANKS + 4)


def end_ranks(pids: tuple[int, ...], agent: int, marker: str) -> bool:
    """Kill the ranks' groups, then what else they have started; whether any rank was alive.

    Not standbys and what looks after the node: they are the agent's, and it may go on. By pid, since a rank may have
    overwritten its environment (setproctitle does); the agent has not reaped it, so the pid is still its own.
    """
    alive = False
    for pid in pids:
        parent, group, state = read_stat(pid)
        if parent == agent and group == pid:
            alive = alive or state not in "ZX"
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                continue
    if pids:
        sweep(marker, of_a_rank)
    return alive


def read_stat(pid: int) -> tuple[int, int, str]:
    """Parent, process group and state: proc(5). Zeros for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state, parent, group = stat.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return 0, 0, "X"
    return int(parent), int(group), state.decode()


def agent_ended_in_order() -> bool:
    """Block until the agent says ``done`` or its end of the pipe closes."""
    received = b""
    while True:
        chunk = os.read(0, 64)
        if not chunk:
            return received.startswith(b"done")
        received = (received + chunk)[:64]


def carries(pid: int, marker: str, variable: str = MARK, proc: str = "/proc") -> bool:
    """Whether a process was started with this marker. Zombies and processes of other users read as not."""
    return bool(marker) and f"{variable}={marker}".encode() in _environ(pid, proc)


def of_a_rank(pid: int, marker: str) -> bool:
    """Whether it has the marker and was started by a rank, not as a standby, a check or another helper."""
    environ = _environ(pid)
    names = {entry.partition(b"=")[0] for entry in environ}
    return (
        f"{MARK}={marker}".encode() in environ
        and b"FTLAUNCH_GENERATION" in names
        and b"FTLAUNCH_STANDBY_FD" not in names
    )


def sweep(marker: str, belongs: Callable[[int, str], bool] = carries) -> None:
    """Kill every process that belongs until two looks running find none, for at most SWEEP_LIMIT_S.

    Two looks, because a process that forks while we read the table can show neither its parent nor its child.
    """
    clean = 0
    for _ in range(int(SWEEP_LIMIT_S / PAUSE_S)):
        found = [pid for pid in _pids() if belongs(pid, marker)]
        for pid in found:
            kill(pid, marker)
        clean = 0 if found else clean + 1
        if clean == 2:
            return
        select.select([], [], [], PAUSE_S)


def _environ(pid: int, proc: str = "/proc") -> list[bytes]:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as environ:
            return environ.read().split(b"\0")
    except OSError:
        return []


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def kill(pid: int, marker: str) -> None:
    """SIGKILL, if the process carries the marker. Never anybody else's."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Looked at again with the pid pinned: it may be another process by now.
        if carries(pid, marker):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(pidfd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None))
