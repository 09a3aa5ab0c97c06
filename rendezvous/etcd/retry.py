"""Trying again, with growing random pauses. The clock and the sleep are the caller's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ftlaunch.rendezvous.common.clock import monotonic
from ftlaunch.rendezvous.etcd.errors import Unreachable

T = TypeVar("T")


@dataclass(frozen=True)
class Policy:
    """Pauses in seconds: first ``initial_s``, each ``factor`` times as long, up to ``max_s``, shortened by jitter."""

    initial_s: float = 0.05
    max_s: float = 1.0
    factor: float = 2.0
    jitter: float = 0.5

    def pause(self, attempt: int, chance: float) -> float:
        """The pause after the ``attempt``-th failure, counted from 0; ``chance`` is within [0, 1)."""
        whole = min(self.max_s, self.initial_s * self.factor ** min(attempt, 60))
        return whole * (1 - self.jitter * chance)


@dataclass(frozen=True)
class Retry:
    """Calls something until it answers. ``deadline`` is on ``clock``."""

    policy: Policy = Policy()
    deadline: float = float("inf")
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = monotonic
    chance: Callable[[], float] = field(default=random.random)

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the first answer.

        Only :class:`~.errors.Unreachable` is tried again. Raises the last one when the deadline has passed.
        """
        tried = 0
        while True:
            try:
                return await attempt()
            except Unreachable:
                pause = self.policy.pause(tried, self.chance())
                if self.clock() + pause >= self.deadline:
                    raise
            tried += 1
            await self.sleep(pause)
