"""Waiting for a file to grow: inotify(7) where it can be had, else looking four times a second."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

_IN_MODIFY = 0x2
_LOOK_MS = 250
_RECHECK_MS = 1000
"""Changes that another host makes on a shared file system raise no inotify event here."""


class GrowthWaiter:
    """Waits until a file may have grown. Close it."""

    def __init__(self, path: Path) -> None:
        self._poll = select.poll()
        self._fd = _watch(path)
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLIN)

    def wait(self) -> None:
        """Return when the file was written to, at the latest after a second."""
        if self._poll.poll(_RECHECK_MS if self._fd >= 0 else _LOOK_MS):
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 65536)

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)


def follow_lines(path: Path, ended: Callable[[], bool]) -> Iterator[bytes]:
    """Yield whole lines as they are written, until ``ended()`` and nothing more is there. Raises OSError."""
    waiter = GrowthWaiter(path)
    try:
        with open(path, "rb") as file:
            pending = b""
            while True:
                # Asked before reading: what was written before the end is still delivered.
                over = ended()
                while line := file.readline():
                    pending += line
                    if pending.endswith(b"\n"):
                        yield pending
                        pending = b""
                if over:
                    return
                waiter.wait()
    finally:
        waiter.close()


def _watch(path: Path) -> int:
    """An inotify descriptor for ``path``, or -1: no such system call, or too many of them for this user."""
    libc = ctypes.CDLL(None)
    try:
        fd = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    except AttributeError:
        return -1
    if fd >= 0 and int(libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY))) < 0:
        os.close(fd)
        return -1
    return fd
