"""The job as the meeting point holds it in memory: who is here, what was agreed, what follows. No sockets.

Decides as an etcd leader would, by :func:`~ftlaunch.rendezvous.common.decide.lead`, and says the outcome through
``say``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Union

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
from ftlaunch.rendezvous.common.exclusion import plan
from ftlaunch.rendezvous.common.leading import REMIND_S, Round, limits_of, table_of
from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    FinishRecord,
    GrowthRecord,
    NodeRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import SUSPECT_WINDOW, Node
from ftlaunch.rendezvous.hub.frames import Hello
from ftlaunch.rendezvous.hub.settings import HubSettings
from ftlaunch.rendezvous.interface import ExclusionAnswer, ExclusionWish, Publish

log = logging.getLogger("ftlaunch.rendezvous")

Spoken = Union[TableRecord, FailureRecord, GrowthRecord, ClosedRecord, ExclusionsRecord]


@dataclass
class Guest:
    """One agent. ``since`` orders the guests by their first arrival; ``here`` while its connection stands."""

    hello: Hello
    since: int
    heard_at: float
    here: bool = True
    record: NodeRecord | None = None


class JobState:
    """``say`` brings a record to all agents, ``drop`` ends the connection of one. Times are the running loop's."""

    def __init__(
        self,
        settings: HubSettings,
        host: Hello,
        publish: Publish,
        say: Callable[[Spoken], None],
        drop: Callable[[Guest], None],
    ) -> None:
        self._settings = settings
        self._limits = limits_of(settings)
        self._host = host
        self._publish = publish
        self._say = say
        self._drop = drop
        self._finished: dict[str, int] = {}
        self._round = Round()
        self._alarm: asyncio.TimerHandle | None = None
        self._reminded_at = 0.0
        self._arrivals = 0
        self.guests: dict[str, Guest] = {}
        self.view = View()
        self.reason = ""

    def close(self) -> None:
        """Decide nothing any more."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.guests.clear()

    # --- what is learned ----------------------------------------------------------------------------------------------

    def arrive(self, hello: Hello) -> Guest:
        """An agent connected, for the first time or again."""
        now = _now()
        guest = self.guests.get(hello.node_id)
        if guest is None:
            self._arrivals += 1
            guest = self.guests[hello.node_id] = Guest(hello, self._arrivals, now)
        guest.hello, guest.heard_at, guest.here = hello, now, True
        return guest

    def depart(self, guest: Guest) -> None:
        """An agent left, or is proven gone."""
        if self.guests.get(guest.hello.node_id) is guest:
            del self.guests[guest.hello.node_id]
            self.consider()

    def learn_node(self, guest: Guest, payload: bytes) -> None:
        """What an agent asks for. Raises :class:`RecordError`, as all of these."""
        guest.record = NodeRecord.decode(payload)
        self.consider()

    def learn_failure(self, guest: Guest, payload: bytes) -> None:
        """A generation ended."""
        self._fail(FailureRecord.decode(payload))
        self.consider()

    def learn_finish(self, guest: Guest, payload: bytes) -> None:
        """All ranks of a node succeeded."""
        self._finished[guest.hello.node_id] = FinishRecord.decode(payload).generation
        self.consider()

    def learn_closed(self, guest: Guest, payload: bytes) -> None:
        """The job is over."""
        self.tell(ClosedRecord.decode(payload))

    def learn_table(self, guest: Guest, payload: bytes) -> None:
        """What was agreed on at a meeting point that is no more: go on from there, and give its nodes time to come."""
        table = TableRecord.decode(payload)
        if self.view.table is None or table.generation > self.view.table.generation:
            self.view = replace(self.view, table=table)
            self._round = self._round.patient(_now() + self._settings.node_timeout_s)
            self.consider()

    def learn_excluded(self, guest: Guest, payload: bytes) -> None:
        """Who was left out at a meeting point that is no more."""
        record = ExclusionsRecord.decode(payload)
        if record.revision > self.view.excluded.revision:
            self.tell(record)
            self.consider()

    def exclude(self, guest: Guest, wish: ExclusionWish) -> ExclusionAnswer:
        """Leave a node out, or let it in again. Raises :class:`RendezvousError`."""
        record, answer = plan(wish, guest.hello.host, self.view, self._roster(), self._limits, self._host.node_id)
        if record is not None:
            self.tell(record)
            self.consider()
        return answer

    # --- deciding -----------------------------------------------------------------------------------------------------

    def consider(self) -> None:
        """Decide until nothing follows. May be called at any time."""
        while self.view.closed is None:
            now = _now()
            self._expire(now)
            roster = self._roster()
            self._round = self._round.seen(self.view, roster, now)
            decision = lead(self.view, roster, self._limits, self._round.timing, now)
            self.reason = decision.reason
            if isinstance(decision.step, Wait):
                self._wait(decision.step, decision.reason, now)
                return
            self._act(decision.step, decision.reason)

    def _roster(self) -> Roster:
        nodes = (Node(g.record, g.since) for g in self.guests.values() if g.record is not None)
        return Roster({node.node_id: node for node in nodes}, self._finished)

    def _expire(self, now: float) -> None:
        for name, guest in list(self.guests.items()):
            if now - guest.heard_at > self._settings.node_timeout_s:
                del self.guests[name]
                # Should it be heard of after all, it must come back through the door: nobody counts on it any more.
                self._drop(guest)

    def _wait(self, step: Wait, reason: str, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        ends = [guest.heard_at + self._settings.node_timeout_s for guest in self.guests.values()]
        moments = [*ends, *([step.until] if step.until is not None else [])]
        if step.incomplete:
            moments.append(self._remind(reason, now))
        if moments:
            # A moment later, so that "not longer than" is over.
            self._alarm = asyncio.get_running_loop().call_at(min(moments) + 0.001, self.consider)

    def _remind(self, reason: str, now: float) -> float:
        """Say what is missed, every while; when to do so next."""
        due = max(self._round.timing.opened_at, self._reminded_at) + REMIND_S
        if now < due:
            return due
        self._reminded_at = now
        log.warning("still waiting for nodes: %s", reason)
        return now + REMIND_S

    def _act(self, step: Agree | DeclareLost | DeclareEnded | Finish | Grow, reason: str) -> None:
        if isinstance(step, Agree):
            self._agree(step)
        elif isinstance(step, DeclareLost):
            gone = ", ".join(step.node_ids)
            self._fail(self._record_of(step, FailureKind.LOST, step.node_ids[0], f"no sign of life of {gone}", False))
        elif isinstance(step, DeclareEnded):
            self._fail(self._record_of(step, FailureKind.ASKED, step.node_id, reason, step.counted))
        elif isinstance(step, Grow):
            self.tell(GrowthRecord(step.generation, step.waiting, reason))
        else:
            self.tell(ClosedRecord(0, reason, self._host.node_id, self._host.host, new_attempt()))

    def _record_of(
        self, step: DeclareLost | DeclareEnded, kind: FailureKind, node_id: str, reason: str, counted: bool
    ) -> FailureRecord:
        return FailureRecord(step.generation, kind, node_id, "", reason, new_attempt(), counted)

    def _agree(self, step: Agree) -> None:
        shared = self._publish([node.record.offers for node in step.nodes])
        table = table_of(step, shared, self._host.settings)
        self._finished.clear()
        failures = {n: f for n, f in self.view.failures.items() if n >= table.generation - SUSPECT_WINDOW}
        self.view = replace(self.view, growth=None, failures=failures)
        try:
            self.tell(table)
        except RecordError as error:
            self.tell(ClosedRecord(69, f"generation cannot be agreed: {error}", "", "", new_attempt()))

    def _fail(self, failure: FailureRecord) -> None:
        """The first one of each generation counts; those of generations that are over say nothing."""
        table = self.view.table
        if table is not None and failure.generation == table.generation and self.view.failure is None:
            self.tell(failure)

    def tell(self, record: Spoken) -> None:
        """Take something into the view and say it to all. Raises :class:`RecordError` for what cannot be said."""
        if self.view.closed is not None:
            return
        record.encode()
        if isinstance(record, TableRecord):
            self.view = replace(self.view, table=record)
        elif isinstance(record, FailureRecord):
            self.view = replace(self.view, failures={**self.view.failures, record.generation: record})
        elif isinstance(record, GrowthRecord):
            self.view = replace(self.view, growth=record)
        elif isinstance(record, ExclusionsRecord):
            self.view = replace(self.view, excluded=record)
        else:
            self.view = replace(self.view, closed=record)
        self._say(record)


def _now() -> float:
    return asyncio.get_running_loop().time()
