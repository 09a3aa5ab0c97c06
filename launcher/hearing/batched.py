"""Reads a socket in batches while much arrives, and at once while little does.

Being woken costs far more than reading: for each beat of each rank it would be several percent of a core, for the agent
and, through the wake-up that its send causes, for the rank too. So after a message the socket is read by the clock, a
few milliseconds apart, until nothing comes any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SHORTEST_S = 0.002
LONGEST_S = 0.05
FEW, MANY = 4, 7
"""Messages per batch: fewer lengthen the pause, more shorten it. A datagram socket holds about ten of them by default
(net.unix.max_dgram_qlen), and who finds it full has to wait or to drop."""
_EMPTY = 2


class BatchedReader:
    """Calls ``read``, which returns how many messages it took, when there is something to read."""

    def __init__(self, fd: int, read: Callable[[], int]) -> None:
        self._fd = fd
        self._read = read
        self._pause_s = SHORTEST_S
        self._empty = 0
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin to read."""
        asyncio.get_running_loop().add_reader(self._fd, self._on_readable)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()

    def _on_readable(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        self._pause_s, self._empty = SHORTEST_S, 0
        self._timer = loop.call_later(self._pause_s, self._on_pause_over)
        self._read()

    def _on_pause_over(self) -> None:
        loop = asyncio.get_running_loop()
        count = self._read()
        self._empty = 0 if count else self._empty + 1
        if self._empty >= _EMPTY:
            self._timer = None
            loop.add_reader(self._fd, self._on_readable)
            return
        self._pause_s = next_pause_s(self._pause_s, count)
        self._timer = loop.call_later(self._pause_s, self._on_pause_over)


def next_pause_s(pause_s: float, count: int) -> float:
    """How long to wait for the next batch after one of ``count`` messages."""
    if count > MANY:
        return max(SHORTEST_S, pause_s / 2)
    if count < FEW:
        return min(LONGEST_S, pause_s * 1.5)
    return pause_s
