"""Seeing in time that the meeting point counts on this node no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.trust import CLOCK_CHECK_S, stood_still
from ftlaunch.rendezvous.hub.link import Link
from ftlaunch.rendezvous.hub.settings import HubSettings


class Vigil:
    """Calls ``on_silence(why)`` every second from ``margin_s`` before that moment on, until a sign of life is answered.

    ``why`` is empty unless it was this agent that stood still.
    """

    def __init__(self, link: Link, settings: HubSettings, on_silence: Callable[[str], None]) -> None:
        self._link = link
        self._margin_s = settings.margin_s
        self._on_silence = on_silence
        self._looked_at = boottime()
        self._alarm: asyncio.TimerHandle | None = None

    def keep(self) -> None:
        """Look now, and on. The loop's timers stand still while the machine is suspended, so none may be far away."""
        left = self.look()
        pause_s = min(left, CLOCK_CHECK_S) if left > 0 else CLOCK_CHECK_S
        self._alarm = asyncio.get_running_loop().call_later(pause_s, self.keep)

    def look(self) -> float:
        """Look once; returns the seconds that are left."""
        now = boottime()
        paused_s, self._looked_at = now - self._looked_at, now
        left = self._link.valid_until - self._margin_s - now
        if left <= 0 and self._link.valid_until > 0:
            self._on_silence(stood_still(paused_s))
        return left

    def stop(self) -> None:
        """No more."""
        if self._alarm is not None:
            self._alarm.cancel()
