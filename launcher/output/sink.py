"""One file behind the console (terminal, pipe or file), written by a thread of its own from a bounded queue."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ftlaunch.launcher import clock
from ftlaunch.launcher.output.threads import start_quiet_thread

QUEUE_BYTES = 4 << 20
PATIENCE_S = 1.0
"""How long writers wait for a busy console altogether, until it has caught up. Keeps bursts whole."""
STUCK_S = 0.1
"""A console that took nothing for so long is stuck, and nobody waits for it."""
_RESERVE_BYTES = 1 << 20
_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ENODEV, errno.ECONNRESET, errno.ENOTCONN})


class Sink:
    """Whole blocks in, written in order. Only :meth:`wait_for_room` waits, at most ``PATIENCE_S`` in total."""

    def __init__(self, on_gone: Callable[[int, OSError], None]) -> None:
        self._on_gone = on_gone
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued = 0
        self._gone: set[int] = set()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._patience_s = PATIENCE_S
        self._progress_at = 0.0
        self._stuck = False
        self._full = False

    def put(self, fd: int, blocks: Sequence[bytes], urgent: bool = False) -> bool:
        """Queue blocks; False when they had to be dropped because the console does not keep up or is gone.

        ``urgent`` blocks may use a reserve. Never waits.
        """
        with self._changed:
            if fd in self._gone or self._closing or not self._has_room(urgent):
                return False
            if not self._queued:
                self._progress_at = clock.monotonic()
            self._queue.extend((fd, block) for block in blocks)
            self._queued += sum(map(len, blocks))
            if self._thread is None:
                self._thread = start_quiet_thread(self._run, "ftlaunch-console")
            self._changed.notify_all()
            return True

    def is_gone(self, fd: int) -> bool:
        """Whether the reader behind ``fd`` has hung up."""
        return fd in self._gone

    def wait_for_room(self) -> None:
        """Give a busy console, not a stuck one, a moment to make room, so that a burst of output stays whole."""
        with self._changed:
            while self._queued >= QUEUE_BYTES and not (self._full or self._stuck) and self._patience_s > 0:
                now = clock.monotonic()
                self._changed.wait(min(self._patience_s, STUCK_S))
                after = clock.monotonic()
                self._patience_s -= after - now
                self._stuck = after - self._progress_at >= STUCK_S

    @property
    def caught_up(self) -> bool:
        """Whether there is room again after something was dropped."""
        with self._changed:
            return self._has_room(urgent=False)

    def close(self, timeout_s: float) -> bool:
        """Write what is queued and end the thread; False when that took longer than ``timeout_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued was written; False when that took longer than ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued, timeout_s)

    def _has_room(self, urgent: bool) -> bool:
        if urgent:
            return self._queued < QUEUE_BYTES + _RESERVE_BYTES
        # Once full it stays so until half of it was written, or every other line would be dropped.
        self._full = self._queued >= (QUEUE_BYTES // 2 if self._full else QUEUE_BYTES)
        return not self._full

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                fd, block = self._queue.popleft()
            if fd not in self._gone:
                self._write(fd, block)
            self._wrote(len(block))

    def _wrote(self, size: int) -> None:
        with self._changed:
            self._queued -= size
            self._progress_at = clock.monotonic()
            self._stuck = False
            if not self._queued:
                self._patience_s = PATIENCE_S
            self._changed.notify_all()

    def _write(self, fd: int, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                # Somebody who shares the terminal made it non-blocking.
                _wait_writable(fd)
            except OSError as error:
                if error.errno in _GONE:
                    self._gone.add(fd)
                    self._on_gone(fd, error)
                # Else a full disk behind a redirection, or the like: this block is lost, the next may fit.
                return


def _wait_writable(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll(1000)
