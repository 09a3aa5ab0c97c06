"""What a few system calls tell about this node, some 100 µs in all, before anything is loaded to look closer.

Only for file systems that the agent itself uses anyway: elsewhere a call may hang (a dead mount), so those are asked by
:mod:`ftlaunch.launcher.health.storage` in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping

SHM = "/dev/shm"
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
_LIBRARY = "libnvidia-ml.so.1"
_ROOM = 0.1
"""Shared memory and memory that are freer than this are fine by any check."""

Identity = tuple[int, int]
"""Device and inode: a name may be used again."""


def driver_present(environment: Mapping[str, str], device_files: Iterable[str] = _DEVICE_FILES) -> bool:
    """Whether it is worth asking NVML at all: a few stat(2) calls, nothing is loaded."""
    if any(os.path.exists(path) for path in device_files):
        return True
    folders = environment.get("LD_LIBRARY_PATH", "").split(":")
    return any(folder and os.path.exists(os.path.join(folder, _LIBRARY)) for folder in folders)


def all_hidden(environment: Mapping[str, str]) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` hides every GPU from ranks with this environment."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip() in ("", "-1")


def is_clear(paths: Iterable[str], min_free: int, shm: str = SHM, meminfo: str = "/proc/meminfo") -> bool:
    """Whether memory, shared memory and the disks at ``paths`` are far from every limit. False: have a closer look."""
    return _memory_is_clear(meminfo) and _shm_is_clear(shm) and all(_disk_is_clear(path, min_free) for path in paths)


def _memory_is_clear(path: str) -> bool:
    try:
        with open(path, "rb") as meminfo:
            facts = dict(line.split(b":", 1) for line in meminfo if b":" in line)
        return _kilobytes(facts[b"MemAvailable"]) >= _ROOM * _kilobytes(facts[b"MemTotal"])
    except (OSError, KeyError, ValueError, IndexError):
        return False


def _kilobytes(text: bytes) -> int:
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


def shm_files(folder: str = SHM) -> Iterator[tuple[str, os.stat_result]]:
    """All regular files there, also in directories below; about 5 µs each. What can't be read is left out."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                facts = os.lstat(path)
                if stat.S_ISREG(facts.st_mode):
                    yield path, facts


def shm_identities(folder: str = SHM) -> frozenset[Identity]:
    """Which files are there, to be remembered when a generation starts."""
    return frozenset((facts.st_dev, facts.st_ino) for _, facts in shm_files(folder))
