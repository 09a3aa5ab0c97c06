"""What the user sees: rank output and the launcher's own lines, never mixed within a line, never in anybody's way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Hashable, Sequence

from ftlaunch.launcher.output.lines import Cursor, compose, pack
from ftlaunch.launcher.output.sink import Sink

_OWN = "ftlaunch"


def ensure_standard_fds() -> None:
    """Open /dev/null in place of missing standard descriptors. First thing in ``main``.

    Else the next file that is opened would become descriptor 1, and rank output would be written into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != fd:
                    os.dup2(opened, fd)
                    os.close(opened)


class Console:
    """Prints to ``out`` and ``err``. All methods may be called from any thread; none raises."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self.hint = ""
        """Where else the output is, told with what had to be dropped here."""
        self._out = out
        self._err = err
        self._lock = threading.Lock()
        self._dropped_lines = 0
        self._dropped_bytes = 0
        # Both on one terminal: one queue, or the order of lines would change.
        self._sinks = {out: Sink(self._on_gone)}
        self._sinks[err] = self._sinks[out] if _same_file(out, err) else Sink(self._on_gone)
        self._cursors = {out: Cursor()}
        self._cursors[err] = self._cursors[out] if self._sinks[err] is self._sinks[out] else Cursor()

    def show(self, error: bool, owner: Hashable, prefix: bytes, pieces: Sequence[bytes]) -> None:
        """Print pieces of a rank's output. What a console that cannot keep up does not take is dropped and counted."""
        fd = self._err if error else self._out
        sink = self._sinks[fd]
        if sink.is_gone(fd):
            return
        # Before the lock: the agent's own lines must not wait for this.
        sink.wait_for_room()
        with self._lock:
            self._tell_dropped()
            before = Cursor(self._cursors[fd].owner, self._cursors[fd].returned)
            blocks = pack(compose(self._cursors[fd], owner, prefix, pieces))
            if not sink.put(fd, blocks) and not sink.is_gone(fd):
                self._cursors[fd].owner, self._cursors[fd].returned = before.owner, before.returned
                self._dropped_lines += len(pieces)
                self._dropped_bytes += sum(map(len, pieces))

    def say(self, line: str) -> None:
        """Print a line of the launcher's own to stderr; dropped only when a stuck console has used up a reserve too."""
        with self._lock:
            self._tell_dropped()
            self._put_own(line)

    def finish(self, text: str = "", timeout_s: float = 2.0) -> bool:
        """Write everything that is queued, then ``text`` as the very last thing; False when the console is stuck.

        Takes at most ``timeout_s`` for each of the two when they lead to different places. Nothing is printed
        afterwards.
        """
        flushed = self._sinks[self._out].flush(timeout_s)
        with self._lock:
            self._tell_dropped(force=True)
            if text:
                self._put_own(text)
        # What is stuck was waited for already.
        written = self._sinks[self._out].close(timeout_s if flushed else 0.0)
        if self._sinks[self._err] is self._sinks[self._out]:
            return written
        return self._sinks[self._err].close(timeout_s) and written

    def _put_own(self, text: str) -> None:
        piece = text.encode("utf-8", "backslashreplace") + b"\n"
        blocks = compose(self._cursors[self._err], _OWN, b"", [piece])
        self._sinks[self._err].put(self._err, blocks, urgent=True)

    def _tell_dropped(self, force: bool = False) -> None:
        if not self._dropped_lines or not (force or self._all_caught_up()):
            return
        lines, size = self._dropped_lines, self._dropped_bytes
        self._dropped_lines = self._dropped_bytes = 0
        self._put_own(
            f"[ftlaunch] the console is too slow: {lines} lines ({size} bytes) of rank output were not shown"
            + (f"; all of it is in {self.hint}" if self.hint else "")
        )

    def _all_caught_up(self) -> bool:
        return all(sink.caught_up for sink in self._sinks.values())

    def _on_gone(self, fd: int, error: OSError) -> None:
        # Called by the writer thread of that sink: only put() of the other one may be used from here.
        if fd == self._out and self._sinks[self._err] is not self._sinks[fd]:
            line = f"[ftlaunch] stdout is gone ({error.strerror}): rank output goes on in the log files only\n"
            self._sinks[self._err].put(self._err, [line.encode()], urgent=True)


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.samestat(os.fstat(first), os.fstat(second))
    except OSError:
        return False
