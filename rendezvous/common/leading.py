"""What every leader does around :func:`~.decide.lead`, wherever the job is kept: keep time, and write the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ftlaunch.rendezvous.common.decide import Agree, Limits, Roster, Timing, View, is_available
from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import TableRecord
from ftlaunch.rendezvous.common.table import seat_of

REMIND_S = 30.0
"""How often the user is told which nodes are missed."""
_BEFORE = Timing(0.0, 0.0)


class Settings(Protocol):
    """What the settings of every backend hold of it."""

    @property
    def min_nodes(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def last_call_s(self) -> float: ...
    @property
    def join_timeout_s(self) -> float: ...
    @property
    def node_timeout_s(self) -> float: ...


def limits_of(settings: Settings) -> Limits:
    """What the user's settings mean for :func:`~.decide.lead`."""
    return Limits(
        settings.min_nodes,
        settings.max_nodes,
        settings.last_call_s,
        settings.join_timeout_s,
        settings.node_timeout_s,
    )


@dataclass(frozen=True)
class Round:
    """How long the leader has been gathering.

    ``gathering``: the generation it waits for nodes of, ``None`` while one runs; ``askers``: who asks by now.
    """

    timing: Timing = _BEFORE
    gathering: int | None = None
    askers: frozenset[str] = frozenset()

    def patient(self, until: float) -> Round:
        """Give the nodes of the running generation until then to come back."""
        return replace(self, timing=replace(self.timing, patient_until=until))

    def seen(self, view: View, roster: Roster, now: float) -> Round:
        """The time starts anew with each generation, the last call with each new node that asks."""
        gathering = None
        if view.table is None:
            gathering = 0
        elif view.failure is not None:
            gathering = view.table.generation + 1
        askers = frozenset(node.node_id for node in roster.nodes.values() if is_available(node, view))
        timing = self.timing
        if gathering != self.gathering:
            timing = Timing(now, now, timing.patient_until)
        elif askers - self.askers:
            timing = replace(timing, asked_at=now)
        return Round(timing, gathering, askers)


def table_of(step: Agree, shared: Mapping[str, Any], settings: Mapping[str, str]) -> TableRecord:
    """The agreement as it is told to all; its first node is the master."""
    first = step.nodes[0].record
    return TableRecord(
        generation=step.generation,
        attempt=new_attempt(),
        seats=tuple(seat_of(node) for node in step.nodes),
        master_address=first.address,
        master_port=first.master_port,
        restart_count=step.restart_count,
        shared=shared,
        settings=settings,
        absent=step.absent,
    )
