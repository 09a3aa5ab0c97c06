"""Until when the other nodes count on this one, told to whoever stops its ranks when the agent cannot.

An agent that is stopped (SIGSTOP, a debugger, a call that hangs in the kernel) fences nothing, and the others go on
without it as soon as its lease is over. So the end of the lease is told beforehand, each time that it moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

NOT_BOUND = 0.0
"""Nothing has to be stopped at any time: there is no lease, or the agent has seen its end and acts by itself."""


def _to_nobody(until: float) -> None:
    """Without a listener."""


class Trust:
    """Tells ``listener`` when ranks must be gone, on CLOCK_BOOTTIME, or :data:`NOT_BOUND`; from any thread.

    That is ``margin_s / 2`` before the others may go on: later than the agent itself would act, and in time.
    """

    def __init__(self, margin_s: float = 0.0) -> None:
        self.listener: Callable[[float], None] = _to_nobody
        self._early_s = margin_s / 2
        self._lock = threading.Lock()
        self._bound = False

    def begin(self, until: float) -> None:
        """There is a lease."""
        with self._lock:
            self._bound = True
            self.listener(until - self._early_s)

    def extend(self, until: float) -> None:
        """It was renewed; too late if it was given up meanwhile."""
        with self._lock:
            if self._bound:
                self.listener(until - self._early_s)

    def end(self) -> None:
        """It is over, or must be taken to be, and the agent knows."""
        with self._lock:
            if self._bound:
                self._bound = False
                self.listener(NOT_BOUND)
