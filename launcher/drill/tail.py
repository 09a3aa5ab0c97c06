"""Following the events of runs as they are written, and waiting for that and for the end of processes at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.launcher.journal.records import EVENTS_FILE, parse_event

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80
_UNSEEN_S = 0.25
"""How often to look where there is no inotify(7): too many watches of this user, or a file system of another host."""


class Tail:
    """Reads the events of one run directory."""

    def __init__(self, run: Path, offset: int = 0) -> None:
        self.events: list[Mapping[str, Any]] = []
        self._path = run / EVENTS_FILE
        self._offset = offset

    def read(self) -> int:
        """Take in what was written since; returns how many events that were. Nothing while there is no file."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return 0
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [event for line in whole.splitlines(keepends=True) if (event := parse_event(line)) is not None]
        self.events += new
        return len(new)


class Waiter:
    """Waits for changes in directories and for descriptors. Close it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._blind = self._fd < 0

    def watch(self, folder: Path) -> None:
        """From now on wake up when something is written there."""
        mask = ctypes.c_uint32(_IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)
        if self._fd < 0 or int(self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)) < 0:
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
