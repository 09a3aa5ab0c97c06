"""The agent's last will: kills what carries the run's marker when the agent itself was killed.

Run by path with ``python -I -S``; standard library only, a few MB, one per agent. It blocks on a pipe whose write end
lives only in the agent. ``done`` on the pipe means that the agent ended in order; end of file without it means that
the agent is gone. Ranks die of their own death pipe and parent-death signal at the same moment; the guardian is for
what they have started: data-loader workers, daemons, setsid escapees. The agent starts it with the
signals of terminals and supervisors blocked.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys

SWEEP_LIMIT_S = 10.0
PAUSE_S = 0.02


def main(marker: str, runtime_dir: str) -> int:
    """Wait for the agent's end, then sweep. Returns 0."""
    if not agent_ended_in_order():
        sweep(marker)
        if runtime_dir:
            shutil.rmtree(runtime_dir, ignore_errors=True)
    return 0


def agent_ended_in_order() -> bool:
    """Block until the agent says ``done`` or its end of the pipe closes."""
    received = b""
    while True:
        chunk = os.read(0, 64)
        if not chunk:
            return received.startswith(b"done")
        received = (received + chunk)[:64]


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
    sys.exit(main(sys.argv[1], sys.argv[2]))
