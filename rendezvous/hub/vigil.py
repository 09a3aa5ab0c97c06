"""Seeing in time that the meeting point counts on this node no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.trust import Trust
from ftlaunch.rendezvous.hub.link import Link
from ftlaunch.rendezvous.hub.settings import HubSettings

_CLOCK_CHECK_S = 1.0


class Vigil:
    """Calls ``on_silence`` every second from ``margin_s`` before that moment on, until a sign of life is answered."""

    def __init__(self, link: Link, settings: HubSettings, trust: Trust, on_silence: Callable[[], None]) -> None:
        self._link = link
        self._margin_s = settings.margin_s
        self._trust = trust
        self._on_silence = on_silence
        self._alarm: asyncio.TimerHandle | None = None

    def keep(self) -> None:
        """Look now, and on. The loop's timers stand still while the machine is suspended, so none may be far away."""
        left = self._link.valid_until - self._margin_s - boottime()
        if left <= 0 and self._link.valid_until > 0:
            self._trust.end()
            self._on_silence()
        pause_s = min(left, _CLOCK_CHECK_S) if left > 0 else _CLOCK_CHECK_S
        self._alarm = asyncio.get_running_loop().call_later(pause_s, self.keep)

    def stop(self) -> None:
        """No more."""
        self._trust.end()
        if self._alarm is not None:
            self._alarm.cancel()
