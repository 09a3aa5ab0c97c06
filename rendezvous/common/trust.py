"""Until when the other nodes count on this one, told to whoever stops its ranks when the agent does not.

An agent that is stopped (SIGSTOP, a debugger) fences nothing, and the others go on without it as soon as its lease is
over. So the end of the lease is told beforehand, each time that it moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

NEVER = 0.0
CLOCK_CHECK_S = 1.0
"""How often an agent looks whether its lease is over."""


def _to_nobody(moment: float) -> None:
    """Without a listener."""


def stood_still(paused_s: float) -> str:
    """Why a lease was lost that nobody looked at for so long; empty when that was not the reason."""
    if paused_s < 2 * CLOCK_CHECK_S:
        return ""
    return f"this agent stood still for {paused_s:.1f} s (stopped, suspended, or held up), longer than its lease allows"


class Trust:
    """Tells ``listener`` by when ranks must be gone, on CLOCK_BOOTTIME, or :data:`NEVER`; from any thread.

    That is ``margin_s / 2`` before the others may go on: later than the agent itself acts, and in time.
    """

    def __init__(self, margin_s: float = 0.0) -> None:
        self.listener: Callable[[float], None] = _to_nobody
        self._early_s = margin_s / 2
        self._lock = threading.Lock()
        self._until = 0.0
        self._released = False

    def reach(self, until: float) -> None:
        """A lease lasts until then. One that ends earlier than what was told before changes nothing."""
        with self._lock:
            if until > self._until and not self._released:
                self._until = until
                self.listener(until - self._early_s)

    def release(self) -> None:
        """The job is over: nobody can go on without this node any more."""
        with self._lock:
            self._released = True
            self.listener(NEVER)
