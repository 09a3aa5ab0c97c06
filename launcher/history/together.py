"""The records of one job: those of one node, or of several that ran it together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ftlaunch.launcher.history.goodput import Account, account
from ftlaunch.launcher.history.model import History

_SECOND_HAND = frozenset({"peer", "membership"})
"""Kinds of failure that began on another node, if anywhere."""


@dataclass(frozen=True)
class Node:
    """One node's records. ``offset_s``: from the job's start to its own, by wall time, for pictures only."""

    history: History
    account: Account
    offset_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """All that is known. The numbers are those of ``main``: a node that saw the job's end, if one did, and of those the
    one that was there for most generations."""

    nodes: tuple[Node, ...]
    main: Node

    @property
    def history(self) -> History:
        """The job as the main node saw it, with the first cause of each incident from wherever it was."""
        return self.main.history

    @property
    def account(self) -> Account:
        """Where the time went."""
        return self.main.account

    @property
    def ranks(self) -> int:
        """Highest number of ranks on all nodes together."""
        return max((item.ranks.stop for node in self.nodes for item in node.history.generations), default=0)

    def wall_time(self, at_s: float) -> str:
        """``17:02:01``, with the date in jobs of more than a day; seconds after the start if that is not known."""
        started = parse_time(self.history.started)
        if started is None:
            return f"+{at_s:.0f} s"
        form = "%m-%d %H:%M:%S" if self.history.wall_s > 86400 else "%H:%M:%S"
        return (started + timedelta(seconds=min(at_s, 1e9))).strftime(form)


def put_together(histories: Sequence[History]) -> Job:
    """``histories``: at least one, in any order."""
    ordered = sorted(histories, key=_place)
    end = max(map(_last, ordered))
    main = max(ordered, key=lambda history: (history.finished and _last(history) == end, _started(history)))
    main = _with_first_causes(_with_drills(main, ordered), ordered)
    nodes = tuple(
        Node(history, account(history), _offset(main, history))
        for history in (main if item.place == main.place else item for item in ordered)
    )
    return Job(nodes, next(node for node in nodes if node.history is main))


def parse_time(text: str) -> datetime | None:
    """A ``time`` of an event."""
    # Python 3.10 reads no "Z".
    try:
        return datetime.fromisoformat(re.sub("Z$", "+00:00", text))
    except ValueError:
        return None


def _last(history: History) -> int:
    return max((item.number for item in history.generations), default=-1)


def _started(history: History) -> int:
    return sum(item.started_at is not None for item in history.generations)


def _place(history: History) -> tuple[int, str, str]:
    ranks = [item.group_rank for item in history.generations if item.group_rank is not None]
    return (ranks[0] if ranks else 1 << 30, history.host, history.run_id)


def _offset(main: History, other: History) -> float:
    first, second = parse_time(main.started), parse_time(other.started)
    if first is None or second is None or (first.tzinfo is None) != (second.tzinfo is None):
        return 0.0
    return (second - first).total_seconds()


def _with_drills(main: History, histories: Sequence[History]) -> History:
    """A fault is told by the node it was brought about on."""
    drills: dict[int, tuple[str, ...]] = {}
    for item in (item for history in histories for item in history.generations):
        drills[item.number] = drills.get(item.number, ()) + item.drills
    return replace(main, generations=tuple(replace(item, drills=drills[item.number]) for item in main.generations))


def _with_first_causes(main: History, histories: Sequence[History]) -> History:
    incidents, generations = dict(main.incidents), {item.number: item for item in main.generations}
    for number, incident in main.incidents.items():
        if incident.cause.kind not in _SECOND_HAND:
            continue
        own = [
            (history.incidents[number], item)
            for history in histories
            for item in history.generations
            if item.number == number and number in history.incidents
        ]
        own = [(told, item) for told, item in own if told.cause.kind not in _SECOND_HAND]
        if own:
            told, item = min(own, key=lambda pair: (pair[0].time or "~", pair[0].cause.rank or 0))
            incidents[number] = told
            generations[number] = replace(generations[number], diagnosed=item.diagnosed)
    return replace(main, incidents=incidents, generations=tuple(generations.values()))
