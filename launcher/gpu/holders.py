"""Who has a GPU's device file open, read from /proc: also what the driver's process list does not show.

Marked processes of this run may be killed; others are only reported. Standard library only. Reading another process's
environment takes its memory lock and can hang when that process is stuck (proc(5)), so this runs in the helper.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Collection, Iterator

from ftlaunch.launcher.gpu.model import Holder
from ftlaunch.launcher.processes import guardian

DEVICE_GLOB = "/dev/nvidia*"


def find_holders(
    marker: str, skip: Collection[int] = (), device_glob: str = DEVICE_GLOB, proc: str = "/proc"
) -> tuple[Holder, ...]:
    """All processes with a matching file open, except ``skip``. About 1 ms for each hundred open files.

    An unprivileged user sees only its own processes; others are left out silently.
    """
    skipped = {*skip, os.getpid()}
    return tuple(
        Holder(pid, process_name(pid, proc), guardian.carries(pid, marker, proc=proc))
        for pid in _pids(proc)
        if pid not in skipped and _holds(pid, device_glob, proc)
    )


def kill_marked(holders: Collection[Holder], marker: str) -> None:
    """SIGKILL those of this run, each looked at again with its pid pinned. Never anybody else's."""
    for holder in holders:
        if holder.marked:
            guardian.kill(holder.pid, marker)


def process_name(pid: int, proc: str = "/proc") -> str:
    """The kernel's name of a process; empty when it can't be seen from here."""
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read().strip()
    except OSError:
        return ""


def _pids(proc: str) -> Iterator[int]:
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def _holds(pid: int, device_glob: str, proc: str) -> bool:
    folder = f"{proc}/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if fnmatch.fnmatchcase(os.readlink(f"{folder}/{descriptor}"), device_glob):
                return True
    return False
