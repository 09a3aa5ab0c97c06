"""Waiting for files to grow, and for descriptors at once: inotify(7), else looking four times a second."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Collection, Iterable
from pathlib import Path

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80
_UNSEEN_S = 0.25
"""How often to look where there is no inotify(7): too many watches of this user, or none in this C library."""
SURE_S = 1.0
"""Wait no longer where another host may write: its changes on a shared file system raise no event here."""


class Waiter:
    """Waits for changes of files or in directories, and for descriptors. Close it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        except AttributeError:
            self._fd = -1
        self._blind = self._fd < 0

    def watch(self, path: Path) -> None:
        """From now on wake up when something is written to it, or a file comes into it."""
        mask = ctypes.c_uint32(_IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)
        if self._fd < 0 or int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)) < 0:
            self._blind = True

    def wait(self, timeout_s: float, descriptors: Iterable[int] = ()) -> Collection[int]:
        """Return after ``timeout_s`` at the latest; which of the descriptors are readable."""
        poll = select.poll()
        for descriptor in (*descriptors, *([self._fd] if self._fd >= 0 else [])):
            poll.register(descriptor, select.POLLIN)
        limit_s = min(timeout_s, _UNSEEN_S) if self._blind else timeout_s
        ready = [descriptor for descriptor, _ in poll.poll(max(0.0, limit_s) * 1000)]
        if self._fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 65536)
        return [descriptor for descriptor in ready if descriptor != self._fd]

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
