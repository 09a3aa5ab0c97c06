"""The agent's last will: kills what carries the run's marker when the agent itself was killed.

Run by path with ``python -I -S``; standard library only, a few MB, one per agent. It blocks on a pipe whose write end
lives only in the agent. ``done`` on the pipe means that the agent ended in order; end of file without it means that
the agent is gone. Ranks die of their own death pipe and parent-death signal at the same moment; the guardian is for
what they have started: data-loader workers, daemons, setsid escapees. The agent starts it with the
signals of terminals and supervisors blocked.

With several nodes it also ends the ranks of an agent that lives and does not act (stopped, or stuck in the kernel),
just before the other nodes may go on without this one. When that is stands in the page that
:mod:`ftlaunch.heartbeat.flags` describes: the agent moves it on as long as it is heard of, and takes it away when it
acts by itself.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import struct
import sys
import time

SWEEP_LIMIT_S = 10.0
PAUSE_S = 0.02
LOOK_S = 2.0
# As in heartbeat/flags.py, which a file that is run by path with -I cannot import.
GONE_BY, ENDED_AT = 8, 16
_DOUBLE = struct.Struct("d")


def main(marker: str, runtime_dir: str, page: int | None) -> int:
    """Wait for the agent's end, then sweep. ``page``: a descriptor, with several nodes. Returns 0."""
    in_order = agent_ended_in_order() if page is None else watched_until_the_end(marker, page)
    if not in_order:
        sweep(marker)
        if runtime_dir:
            shutil.rmtree(runtime_dir, ignore_errors=True)
    return 0


def watched_until_the_end(marker: str, page: int) -> bool:
    """As :func:`agent_ended_in_order`; meanwhile the ranks are ended whenever their time is over."""
    acted_on = 0.0
    while True:
        gone_by, now = read_moment(page, GONE_BY), time.clock_gettime(time.CLOCK_BOOTTIME)
        bound = gone_by not in (0.0, acted_on)
        if bound and now >= gone_by:
            sweep(marker)
            os.pwrite(page, _DOUBLE.pack(now), ENDED_AT)
            acted_on = gone_by
        # The moment may be set, or moved to an earlier one, while we wait.
        elif select.select([0], [], [], min(LOOK_S, gone_by - now) if bound else LOOK_S)[0]:
            return agent_ended_in_order()


def agent_ended_in_order() -> bool:
    """Block until the agent says ``done`` or its end of the pipe closes."""
    received = b""
    while True:
        chunk = os.read(0, 64)
        if not chunk:
            return received.startswith(b"done")
        received = (received + chunk)[:64]


def read_moment(page: int, offset: int) -> float:
    """Seconds on CLOCK_BOOTTIME, 0.0 for none."""
    data = os.pread(page, _DOUBLE.size, offset)
    return float(_DOUBLE.unpack(data)[0]) if len(data) == _DOUBLE.size else 0.0


def sweep(marker: str) -> None:
    """Kill every process that carries the marker until two looks running find none, for at most SWEEP_LIMIT_S.

    Two looks, because a process that forks while we read the table can show neither its parent nor its child.
    """
    clean = 0
    for _ in range(int(SWEEP_LIMIT_S / PAUSE_S)):
        found = [pid for pid in _pids() if carries(pid, marker)]
        for pid in found:
            _kill(pid, marker)
        clean = 0 if found else clean + 1
        if clean == 2:
            return
        select.select([], [], [], PAUSE_S)


def carries(pid: int, marker: str) -> bool:
    """Whether a process of ours has the marker in its environment. Zombies and foreign processes read as empty."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return f"FTLAUNCH_MARK={marker}".encode() in environ.read().split(b"\0")
    except OSError:
        return False


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _kill(pid: int, marker: str) -> None:
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
