"""The leader's desk: sees all nodes, asks :func:`.decide.lead` what to do, and does it.

Open for as long as this agent holds the ``leader`` key. Everything it writes is conditional on that, so closing the
desk late does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ftlaunch.rendezvous.common.decide import (
    Agree,
    DeclareEnded,
    DeclareLost,
    Finish,
    Grow,
    Roster,
    View,
    Wait,
    lead,
)
from ftlaunch.rendezvous.common.leading import REMIND_S, Round, limits_of, table_of
from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    FailureKind,
    FailureRecord,
    GrowthRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import difference
from ftlaunch.rendezvous.etcd import lease as leases
from ftlaunch.rendezvous.etcd.election import Mandate
from ftlaunch.rendezvous.etcd.errors import EtcdError
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.site import Site, Tasks, log
from ftlaunch.rendezvous.etcd.watch import Broken, Update, follow_ranges
from ftlaunch.rendezvous.interface import Publish


@dataclass(frozen=True)
class DeskListener:
    """Who wants to know. Called on the agent's loop."""

    on_mismatch: Callable[[str], None]
    """This node's settings differ from those of the running job; how."""
    on_crash: Callable[[str], None]
    """Something unexpected ended the leader's work."""


class LeaderDesk:
    """Leads the job under one mandate."""

    def __init__(
        self, site: Site, mandate: Mandate, view: Callable[[], View], publish: Publish, listener: DeskListener
    ) -> None:
        self._site = site
        self._mandate = mandate
        self._view = view
        self._choose = publish
        self._listener = listener
        self._tasks = Tasks(listener.on_crash)
        self._mirror = Mirror(site.keys)
        self._streams: list[Future[None]] = []
        self._working: asyncio.Task[Any] | None = None
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self._round = Round()
        self.reason = ""
        """Why nothing is published yet, or what is going on."""
        self._published = -1
        self._again = False
        self._due: asyncio.Handle | None = None

    @property
    def mandate(self) -> Mandate:
        """What the leadership hangs on."""
        return self._mandate

    def open(self, patient_until: float = float("-inf")) -> None:
        """Begin to watch all nodes and to lead. ``patient_until`` is on the loop's clock."""
        self._round = Round().patient(patient_until)
        site = self._site

        def tell(update: Update) -> None:
            site.post(self._on_update, update)

        idle_s = site.settings.node_timeout_s
        self._streams = [
            site.io.submit(follow_ranges(site.client, site.keys.private, tell, idle_s)),
            site.io.submit(leases.hold_job_lease(site.client, site.keys.job_lease, site.settings.state_ttl_s)),
        ]

    def close(self) -> None:
        """Stop leading."""
        for alarm in self._alarms.values():
            alarm.cancel()
        for stream in self._streams:
            stream.cancel()
        self._streams = []
        self._tasks.abandon()

    def consider(self) -> None:
        """Decide anew. To be called when anything has changed; cheap when nothing follows."""
        if self._working is not None:
            self._again = True
            return
        if not self._streams or not self._mirror.complete:
            return
        view = self._view()
        if self._published > (view.table.generation if view.table is not None else -1):
            # Our own table is on its way back to us.
            return
        roster = self._fitting(self._mirror.roster())
        now = asyncio.get_running_loop().time()
        if self._is_intruder(view, set(roster.nodes)):
            return
        self._round = self._round.seen(view, roster, now)
        settings = self._site.settings
        limits = limits_of(settings)
        decision = lead(view, roster, limits, self._round.timing, now)
        self._log(decision.reason, isinstance(decision.step, Wait) and decision.step.incomplete)
        if isinstance(decision.step, Wait):
            self._wait(decision.step, now)
            return
        self._working = self._tasks.start(self._do(decision.step, decision.reason, view), "leading the rendezvous")
        self._working.add_done_callback(self._done)

    # --- seeing -----------------------------------------------------------------------------------------------------

    def _on_update(self, update: Update) -> None:
        if isinstance(update, Broken):
            log.debug("the leader's watch is interrupted: %s", update.reason)
            return
        self._mirror.apply(update)
        if self._due is None:
            # Once for all updates that have arrived by now: a thousand nodes may ask at the same moment.
            self._due = asyncio.get_running_loop().call_soon(self._consider_all)

    def _consider_all(self) -> None:
        self._due = None
        self.consider()

    def _fitting(self, roster: Roster) -> Roster:
        """Without nodes that were started differently: each of them finds out by itself, and says so."""
        mine = self._site.settings_digest
        fitting = {n.node_id: n for n in roster.nodes.values() if n.record.settings_digest == mine}
        return Roster(fitting, roster.finished)

    def _is_intruder(self, view: View, living: set[str]) -> bool:
        """Whether we came to lead a running job that we don't fit: the one before us died just as we came."""
        table = view.table
        if table is None:
            return False
        other = next((s for s in table.seats if s.node_id in living and s.node_id != self._site.node.node_id), None)
        if other is None:
            return False
        unlike = difference(self._site.job_settings, table.settings, self._site.name, other.host)
        if unlike is not None:
            self._listener.on_mismatch(unlike)
        return unlike is not None

    def _log(self, reason: str, incomplete: bool) -> None:
        if reason != self.reason:
            self.reason = reason
            log.info("rendezvous: %s", reason)
        if incomplete and "remind" not in self._alarms:
            self._alarms["remind"] = asyncio.get_running_loop().call_later(REMIND_S, self._remind)
        elif not incomplete and "remind" in self._alarms:
            self._alarms.pop("remind").cancel()

    def _remind(self) -> None:
        del self._alarms["remind"]
        log.warning("still waiting for nodes: %s", self.reason)
        self.consider()

    # --- acting -----------------------------------------------------------------------------------------------------

    def _wait(self, step: Wait, now: float) -> None:
        alarm = self._alarms.pop("wait", None)
        if alarm is not None:
            alarm.cancel()
        if step.until is not None:
            self._alarms["wait"] = asyncio.get_running_loop().call_at(max(step.until, now), self.consider)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._working = None
        if not task.cancelled() and task.exception() is None and self._again:
            self._again = False
            self.consider()

    async def _do(self, step: Agree | DeclareLost | DeclareEnded | Finish | Grow, reason: str, view: View) -> None:
        """Carry out one step; the watch then brings what we wrote."""
        try:
            if isinstance(step, Agree):
                await self._publish(step, view)
            elif isinstance(step, DeclareLost):
                await self._declare_lost(step, view)
            elif isinstance(step, DeclareEnded):
                await self._declare_ended(step, reason)
            elif isinstance(step, Grow):
                growth = GrowthRecord(step.generation, step.waiting, reason)
                await self._site.ask(lambda: self._site.job.grow(growth, self._mandate))
            else:
                await self._close_job(0, reason)
        except RecordError as error:
            await self._close_job(69, f"generation cannot be published: {error}")
        except EtcdError as error:
            log.warning("rendezvous: %s", error)
            await asyncio.sleep(1.0)
            self._again = True

    async def _publish(self, step: Agree, view: View) -> None:
        shared = self._choose([node.record.offers for node in step.nodes])
        table = table_of(step, shared, self._site.job_settings)
        _warn_of_loopback(table)
        if await self._site.ask(lambda: self._site.job.publish(table, self._mandate)):
            self._published = table.generation

    async def _declare_lost(self, step: DeclareLost, view: View) -> None:
        seats = [s for s in (view.table.seats if view.table is not None else ()) if s.node_id in step.node_ids]
        names = ", ".join(f"{seat.node_id}" for seat in seats[:8])
        reason = f"lost: no sign of life of {names} for the node timeout, or proven gone"
        seat = seats[0]
        failure = FailureRecord(
            step.generation, FailureKind.LOST, seat.node_id, seat.host, reason, new_attempt(), counted=False
        )
        await self._site.ask(lambda: self._site.job.fail(failure))

    async def _declare_ended(self, step: DeclareEnded, reason: str) -> None:
        failure = FailureRecord(
            step.generation, FailureKind.ASKED, step.node_id, step.host, reason, new_attempt(), step.counted
        )
        await self._site.ask(lambda: self._site.job.fail(failure))

    async def _close_job(self, exit_code: int, reason: str) -> None:
        site = self._site
        closed = ClosedRecord(exit_code, reason, site.node.node_id, site.node.host, new_attempt())
        await site.ask(lambda: site.job.close(closed, site.settings.tombstone_ttl_s))


def _warn_of_loopback(table: TableRecord) -> None:
    local = [seat for seat in table.seats if seat.address.startswith("127.") or seat.address == "::1"]
    if local and len(local) < len(table.seats):
        log.warning(
            "node %s reaches etcd through loopback (%s), which leads elsewhere from other nodes: give it --local-addr",
            local[0].node_id,
            local[0].address,
        )
