"""What is made of the events while the job runs: one line at its end, metrics, health.

Costs nothing before the first beat, unless a port was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.journal.records import EventLog
from ftlaunch.launcher.say import Say

if TYPE_CHECKING:
    from ftlaunch.heartbeat.watching.watch import Watch
    from ftlaunch.launcher.history.ledger import Ledger
    from ftlaunch.launcher.history.model import History, Pulse
    from ftlaunch.launcher.views.health_port import Readiness
    from ftlaunch.launcher.views.tiny_http import TinyServer

_LONG_S = 60.0
"""A job without a restart that ran longer than this gets its line all the same."""
_MANY = 500
"""Events after which they are taken into account, before the log forgets them."""


class Views:
    """Listens to the event log from :meth:`open` on."""

    def __init__(self, config: Config, events: EventLog, say: Say, run_id: str = "") -> None:
        self._watch: Watch | None = None
        self._standbys: Callable[[], int] | None = None
        self._config = config
        self._events = events
        self._say = say
        self._run_id = run_id
        self._ledger: Ledger | None = None
        self._opened_at = 0.0
        self._servers: list[TinyServer] = []

    async def open(self, watch: Watch | None = None, standbys: Callable[[], int] | None = None) -> None:
        """Serve the ports that were asked for; one that cannot be had costs a line, not the job.

        ``watch``: what is heard of this node's ranks at the moment, which events tell every few seconds only.
        ``standbys``: how many of them are ready.
        """
        self._watch, self._standbys = watch, standbys
        self._events.observers.append(self._observe)
        self._opened_at = clock.monotonic()
        wanted = self._config.metrics
        if wanted.port is not None:
            await self._serve("metrics", wanted.port, self._metrics_page)
        if wanted.health_port is not None:
            await self._serve("health", wanted.health_port, self._health_pages)

    def close(self) -> None:
        """Stop serving and listening."""
        for server in self._servers:
            server.close()
        if self._observe in self._events.observers:
            self._events.observers.remove(self._observe)

    def conclude(self) -> None:
        """Say how the job went, in one line; nothing of a job whose ranks never ran."""
        if not self._say.shows(logging.INFO) and self._ledger is None and not self._is_told_anyway():
            return
        history = self.history()
        if not any(generation.slots for generation in history.generations):
            return
        # One node tells it for all.
        notable = not history.generations[-1].group_rank and bool(history.restarts or history.wall_s > _LONG_S)
        if notable or self._say.shows(logging.INFO):
            from ftlaunch.launcher.history.goodput import account
            from ftlaunch.launcher.history.summary import summary_line

            line = summary_line(history, account(history))
            (self._say.notice if notable else self._say.info)(line)

    def history(self) -> History:
        """The run so far."""
        from ftlaunch.launcher.history.ledger import up_to_now

        now = clock.monotonic()
        history = up_to_now(self._begin().history(now), self._pulses(), now)
        return replace(history, run_id=self._run_id, job_id=self._config.rendezvous.job_id)

    def _observe(self, event: Mapping[str, Any]) -> None:
        if self._ledger is not None:
            self._ledger.feed(event)
        elif event["event"] == "training_resumed" or len(self._events.recent) >= _MANY:
            # Not before: a short job has no use for it, and the import takes 10 ms.
            self._begin()

    def _is_told_anyway(self) -> bool:
        """Whether it was a long job or one with a restart, though no beat was ever heard."""
        again = any(event["event"] == "rendezvous_completed" and event["generation"] for event in self._events.recent)
        return again or clock.monotonic() - self._opened_at > _LONG_S

    def _begin(self) -> Ledger:
        if self._ledger is None:
            from ftlaunch.launcher.history.ledger import Ledger

            self._ledger = Ledger()
            for event in self._events.recent:
                self._ledger.feed(event)
        return self._ledger

    async def _serve(self, what: str, port: int, pages: Callable[[], Mapping[str, Any]]) -> None:
        from ftlaunch.launcher.views.tiny_http import PortError, TinyServer

        try:
            server = TinyServer(pages())
            address = await server.open(self._config.metrics.address, port)
        except (PortError, ImportError) as error:
            self._say.warning(f"no {what}: {error}; the job goes on without")
            return
        self._servers.append(server)
        self._begin()
        (self._say.info if port else self._say.notice)(f"{what} at http://{address}")

    def _metrics_page(self) -> Mapping[str, Any]:
        from ftlaunch.launcher.views.metrics import Sources, metrics_page

        return {"/metrics": metrics_page(Sources(self.history, self._pulses, self._standbys))}

    def _health_pages(self) -> Mapping[str, Any]:
        from ftlaunch.launcher.views.health_port import health_pages

        return health_pages(self._readiness)

    def _pulses(self) -> list[Pulse]:
        from ftlaunch.launcher.history.model import Pulse
        from ftlaunch.launcher.views.hearsay import heard_from

        if self._watch is None:
            return []
        first = self._watch.tracks.first_rank
        return [
            Pulse(
                rank=first + rank.local_rank,
                beat_age_s=rank.beat_age_s if rank.beaten else None,
                step=rank.step,
                ticks=rank.ticks,
                step_s=1 / rank.step_rate if rank.step_rate else None,
            )
            for rank in heard_from(self._watch, clock.monotonic()).ranks.values()
        ]

    def _readiness(self) -> Readiness:
        from ftlaunch.launcher.views.health_port import readiness

        heartbeat = self._config.heartbeat
        return readiness(self.history(), clock.monotonic(), heartbeat.hang_timeout_s, heartbeat.enabled)
