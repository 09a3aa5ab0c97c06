"""Is everything so obviously fine that no check needs to be loaded and run? A few system calls, some 30 µs.

Only for file systems that the agent itself uses anyway: elsewhere a call may hang (a dead mount), so those are asked by
:mod:`.storage` in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

SHM = "/dev/shm"
_ROOM = 0.1
"""Shared memory and memory that are freer than this are fine by any check."""


def is_clear(paths: Iterable[str], min_free: int, shm: str = SHM, meminfo: str = "/proc/meminfo") -> bool:
    """Whether memory, shared memory and the disks at ``paths`` are far from every limit. False: have a closer look."""
    return _memory_is_clear(meminfo) and _shm_is_clear(shm) and all(_disk_is_clear(path, min_free) for path in paths)


def _memory_is_clear(path: str) -> bool:
    try:
        with open(path, encoding="ascii", errors="replace") as meminfo:
            facts = dict(line.split(":", 1) for line in meminfo if ":" in line)
        return _kilobytes(facts["MemAvailable"]) >= _ROOM * _kilobytes(facts["MemTotal"])
    except (OSError, KeyError, ValueError, IndexError):
        return False


def _kilobytes(text: str) -> int:
    return int(text.split()[0])


def _shm_is_clear(path: str) -> bool:
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    return facts.f_bavail >= _ROOM * facts.f_blocks


def _disk_is_clear(path: str, min_free: int) -> bool:
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    writable = not facts.f_flag & os.ST_RDONLY
    return writable and facts.f_bavail * facts.f_frsize >= min_free and (facts.f_favail > 0 or facts.f_files == 0)
