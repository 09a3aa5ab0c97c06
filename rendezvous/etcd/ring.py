"""Watching over the next agents in group rank order, and telling all when one is proven gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftlaunch.rendezvous.common import peers
from ftlaunch.rendezvous.common.decide import View
from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import FailureKind, FailureRecord, Seat
from ftlaunch.rendezvous.etcd.errors import EtcdError
from ftlaunch.rendezvous.etcd.site import Site, Tasks, log


class Ring:
    """This node's link in the ring. ``view`` is asked at the moment a peer is found gone."""

    def __init__(self, site: Site, view: Callable[[], View], on_crash: Callable[[str], None]) -> None:
        self._site = site
        self._view = view
        self._tasks = Tasks(on_crash)
        self._watching: list[asyncio.Task[None]] = []

    def follow(self, seats: tuple[Seat, ...]) -> None:
        """A new generation stands: watch over the next of its nodes."""
        for task in self._watching:
            task.cancel()
        self._watching = [
            self._tasks.start(peers.watch_over(seat, self._on_gone), f"watching over {seat.node_id}")
            for seat in peers.next_in_ring(seats, self._site.node.node_id)
        ]

    async def close(self) -> None:
        """Let go."""
        await self._tasks.cancel_all()

    def _on_gone(self, seat: Seat) -> None:
        view = self._view()
        if view.closed is None and view.table is not None:
            self._tasks.start(self._report(seat, view.table.generation), "reporting a dead agent")

    async def _report(self, seat: Seat, generation: int) -> None:
        """First tell everybody, then end the dead agent's lease, which tells the leader not to wait for it."""
        site, reason = self._site, "its agent is gone: its host refuses the connection"
        failure = FailureRecord(
            generation, FailureKind.LOST, seat.node_id, seat.host, reason, new_attempt(), counted=False
        )
        try:
            await site.ask(lambda: site.job.fail(failure))
            await site.ask(lambda: site.nodes.evict(seat.node_id))
        except EtcdError as error:
            log.warning("reporting the dead agent of %s: %s", seat.host, error)
