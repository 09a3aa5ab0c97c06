"""The last lines of one stream, for the failure report. Bounded in lines and bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

LINES = 50
LINE_BYTES = 2000


class Ring:
    """Filled by the reader thread, read by the agent: at most ``LINES`` times ``LINE_BYTES``."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=LINES)
        self._lock = threading.Lock()

    def extend(self, pieces: Sequence[bytes]) -> None:
        """Take pieces as the splitter cut them. A part continues its line; after a carriage return it is replaced."""
        with self._lock:
            last = pieces[-LINES:]
            if len(last) == LINES and all(piece.endswith(b"\n") for piece in last):
                # So many whole lines leave nothing of what was before.
                pieces = last
            for piece in pieces:
                self._add(piece)

    def lines(self) -> list[bytes]:
        """The last lines, oldest first, without line ends; each cut at ``LINE_BYTES``."""
        with self._lock:
            return [line.rstrip(b"\r\n") for line in self._lines]

    def _add(self, piece: bytes) -> None:
        if self._lines and not self._lines[-1].endswith(b"\n"):
            last = self._lines.pop()
            if not last.endswith(b"\r"):
                piece = last + piece
            elif not piece.strip(b"\r\n"):
                # An empty end of line after a progress bar: its last state is worth more than nothing.
                piece = last.rstrip(b"\r") + piece
        if len(piece) > LINE_BYTES:
            end = piece[-1:] if piece.endswith((b"\n", b"\r")) else b""
            piece = piece[: LINE_BYTES - len(end)] + end
        self._lines.append(piece)
