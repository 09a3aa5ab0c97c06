"""Reap what we adopted: as a subreaper, or as PID 1, the agent inherits every orphan below it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection


def reap_adopted(known: Collection[int]) -> list[int]:
    """Reap dead children that are not ``known``, and return their pids. Never takes a known child's exit status.

    ``waitpid(-1)`` would: so the children are listed first (``/proc/self/task/*/children``, proc(5); kernels without
    it: the process table).
    """
    reaped = []
    for pid in _children():
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    reaped.append(pid)
    return reaped


def _children() -> list[int]:
    pids: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as children:
                pids.extend(int(pid) for pid in children.read().split())
    except OSError:
        from ftlaunch.launcher.host import proctree

        own = os.getpid()
        return [entry.pid for entry in proctree.read_table() if entry.ppid == own]
    return pids
