"""What the leader does next, and what a node has to hear: pure functions of the job's records.

Nothing here reads a clock, a socket or a file. Each decision comes with its reason in one sentence.

* :func:`lead` is asked by the leader whenever something changed or a deadline passed.
* :func:`follow` turns a changed view into events for this node's agent, each of them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Union

from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    GrowthRecord,
    HolderRecord,
    Seat,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import Node, arrange, suspects, world_for
from ftlaunch.rendezvous.interface import (
    Closed,
    Excluded,
    LeaseLost,
    MembershipChanged,
    Parked,
    PeerFailed,
    RendezvousEvent,
    WorldAgreed,
)

WORD_S = 1.0
"""How long the leader waits for the record of why a generation ended, after a member asked for the next."""


@dataclass(frozen=True)
class View:
    """What every agent sees of the job. ``table`` is the latest one."""

    leader: HolderRecord | None = None
    table: TableRecord | None = None
    failures: Mapping[int, FailureRecord] = field(default_factory=dict)
    growth: GrowthRecord | None = None
    closed: ClosedRecord | None = None
    excluded: ExclusionsRecord = field(default_factory=ExclusionsRecord)

    @property
    def failure(self) -> FailureRecord | None:
        """What ended the latest generation; ``None`` while it runs."""
        return self.failures.get(self.table.generation) if self.table is not None else None


@dataclass(frozen=True)
class Roster:
    """What only the leader sees: living nodes by id, and in which generation a node's ranks all succeeded."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    finished: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """How many nodes a generation needs, and how long the leader waits for more."""

    min_nodes: int
    max_nodes: int
    last_call_s: float = 30.0
    window_s: float = 600.0
    node_timeout_s: float = 0.0
    """So long the ranks of a node may live on whose agent says nothing."""


@dataclass(frozen=True)
class Timing:
    """Moments on the leader's own clock.

    ``opened_at``: it first saw that a new generation is needed; ``asked_at``: the last node asked for it;
    ``patient_until``: nodes that lost their lease in an outage may still come back.
    """

    opened_at: float
    asked_at: float
    patient_until: float = float("-inf")


@dataclass(frozen=True)
class Agree:
    """Write the table of the next generation: these nodes in this order."""

    generation: int
    nodes: tuple[Node, ...]
    restart_count: int
    absent: Mapping[str, int]


@dataclass(frozen=True)
class DeclareLost:
    """Members of the running generation are gone."""

    generation: int
    node_ids: tuple[str, ...]


@dataclass(frozen=True)
class DeclareEnded:
    """The generation is over for a member, and nothing on record tells the others so: its words got lost, or it is
    left out from now on."""

    generation: int
    node_id: str
    host: str
    counted: bool


@dataclass(frozen=True)
class Finish:
    """All nodes of the generation succeeded: close the job."""

    generation: int


@dataclass(frozen=True)
class Grow:
    """Nodes wait although the running generation is smaller than wanted: tell its members."""

    generation: int
    waiting: int


@dataclass(frozen=True)
class Wait:
    """Nothing to do before something changes, or until ``until``. ``incomplete``: nodes are missed, tell the user."""

    until: float | None = None
    incomplete: bool = False


Step = Union[Agree, DeclareLost, DeclareEnded, Finish, Grow, Wait]


@dataclass(frozen=True)
class Decision:
    """What to do and why."""

    step: Step
    reason: str


def lead(view: View, roster: Roster, limits: Limits, timing: Timing, now: float) -> Decision:
    """Decide about the next generation, as the leader."""
    if view.closed is not None:
        return Decision(Wait(), "the job is over")
    if view.table is not None and view.failure is None:
        return _watch_over(view, view.table, roster, limits, timing, now)
    return _gather(view, roster, limits, timing, now)


def _watch_over(view: View, table: TableRecord, roster: Roster, limits: Limits, timing: Timing, now: float) -> Decision:
    done = {node_id for node_id, generation in roster.finished.items() if generation == table.generation}
    for seat in table.seats:
        exclusion = view.excluded.of(seat.node_id, seat.host)
        # Who has finished is not in the way any more.
        if exclusion is not None and seat.node_id not in done:
            return Decision(DeclareEnded(table.generation, seat.node_id, seat.host, False), exclusion.said)
    gone = tuple(s.node_id for s in table.seats if s.node_id not in roster.nodes and s.node_id not in done)
    if gone and now < timing.patient_until:
        return Decision(Wait(timing.patient_until), f"nodes may still come back after the outage: {', '.join(gone)}")
    if gone:
        return Decision(DeclareLost(table.generation, gone), f"gone from generation {table.generation}")
    over = [roster.nodes[s.node_id] for s in table.seats if s.node_id in roster.nodes]
    over = [node for node in over if is_available(node, view)]
    if over:
        due, record = timing.asked_at + WORD_S, over[0].record
        reason = f"{record.node_id} asks for the next generation, but why is not on record"
        ended = DeclareEnded(table.generation, record.node_id, record.host, record.counted)
        return Decision(Wait(due) if now < due else ended, reason)
    if all(seat.node_id in done for seat in table.seats):
        return Decision(Finish(table.generation), f"all {len(table.seats)} nodes finished")
    waiting = [n for n in roster.nodes.values() if table.rank_of(n.node_id) is None and is_available(n, view)]
    if not waiting or len(table.seats) >= limits.max_nodes:
        return Decision(Wait(), f"generation {table.generation} is running")
    growth = view.growth
    told = growth is not None and (growth.generation, growth.waiting) == (table.generation, len(waiting))
    reason = f"{len(waiting)} more nodes for a generation of {len(table.seats)}, at most {limits.max_nodes} are wanted"
    return Decision(Wait() if told else Grow(table.generation, len(waiting)), reason)


def is_available(node: Node, view: View) -> bool:
    """Whether a node asks to be in the next generation, and may."""
    asked, table = node.record.asked, view.table
    if view.excluded.of(node.node_id, node.record.host) is not None:
        return False
    if asked is None or table is None:
        return asked is not None
    if table.rank_of(node.node_id) is not None:
        return asked > table.generation
    return asked >= table.absent.get(node.node_id, asked)


def _gather(view: View, roster: Roster, limits: Limits, timing: Timing, now: float) -> Decision:
    table = view.table
    former = table.seats if table is not None else ()
    available = [node for node in roster.nodes.values() if is_available(node, view)]
    here = {node.node_id for node in available}
    # An excluded one, too, until it has stopped its ranks and left; unless they had succeeded before.
    pending = [s for s in former if s.node_id in roster.nodes and s.node_id not in here]
    pending = [s for s in pending if not (_is_out(view, s) and s.node_id in roster.finished)]
    size = min(limits.max_nodes, len(available))
    # Nobody waits for an excluded node to come back.
    wanted = len([s for s in former if not _is_out(view, s)]) if table is not None else limits.max_nodes
    missing = _missing(view, roster, here, limits, size)
    if size < limits.min_nodes:
        return Decision(Wait(incomplete=True), missing)
    if not pending and size >= wanted:
        return Decision(_publish(view, roster, available, limits), f"all {size} expected nodes are there")
    due = min(timing.asked_at + limits.last_call_s, timing.opened_at + limits.window_s)
    if pending:
        # Not before the lease of one that is stopped has ended, and its ranks with it.
        due = max(due, timing.opened_at + limits.node_timeout_s)
    if now < due:
        return Decision(Wait(due, incomplete=True), f"last call: {missing}")
    return Decision(_publish(view, roster, available, limits), f"last call is over: {missing}")


def _publish(view: View, roster: Roster, available: list[Node], limits: Limits) -> Agree:
    table = view.table
    former = table.seats if table is not None else ()
    passed_over = suspects(view.failures, table.generation + 1) if table is not None else frozenset[str]()
    nodes = arrange(former, available, limits.max_nodes, passed_over)
    asked = max(node.record.asked or 0 for node in nodes)
    generation = max(asked, table.generation + 1 if table is not None else 0)
    ids = {node.node_id for node in available}
    absent = dict(table.absent) if table is not None else {}
    absent.update({seat.node_id: generation for seat in former})
    absent = {node_id: since for node_id, since in absent.items() if node_id in roster.nodes and node_id not in ids}
    return Agree(generation, nodes, _restarts(view, nodes), absent)


def _restarts(view: View, nodes: tuple[Node, ...]) -> int:
    """A generation that ended because a node vanished or left does not count, as in torchrun."""
    table, failure = view.table, view.failure
    if table is None:
        return 0
    if failure is None or failure.kind in (FailureKind.LOST, FailureKind.LEFT) or not failure.counted:
        return table.restart_count
    counted = any(node.record.counted for node in nodes if table.rank_of(node.node_id) is not None)
    return table.restart_count + (1 if counted else 0)


def _missing(view: View, roster: Roster, here: set[str], limits: Limits, size: int) -> str:
    wanted = str(limits.max_nodes)
    if limits.min_nodes != limits.max_nodes:
        wanted = f"{limits.min_nodes} to {limits.max_nodes}"
    parts = [f"{size} of {wanted} nodes are there"]
    seats = view.table.seats if view.table is not None else ()
    out = [s.node_id for s in seats if _is_out(view, s)]
    slow = [s.node_id for s in seats if s.node_id in roster.nodes and s.node_id not in {*here, *out}]
    gone = [s.node_id for s in seats if s.node_id not in roster.nodes and s.node_id not in out]
    if slow:
        parts.append(f"not back yet: {_some(slow)}")
    if gone:
        parts.append(f"gone: {_some(gone)}")
    if out:
        parts.append(f"excluded: {_some(out)}")
    return "; ".join(parts)


def _is_out(view: View, seat: Seat) -> bool:
    return view.excluded.of(seat.node_id, seat.host) is not None


def _some(names: list[str], at_most: int = 8) -> str:
    more = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Standing:
    """What this node is, and what its agent has been told already.

    ``seated``: the generation it was last agreed to be in; ``asked``: the generation it asks for, while it does;
    ``finished``: the generation in which its ranks all succeeded, so that it waits for the others.
    """

    node_id: str
    run_id: str
    max_nodes: int
    seated: int | None = None
    asked: int | None = None
    finished: int = -1
    told_failed: int = -1
    told_parked: int = -1
    told_growth: GrowthRecord | None = None
    told_closed: bool = False
    told_excluded: bool = False
    host: str = ""

    def finishing(self, generation: int) -> Standing:
        """Its ranks have succeeded: what made no difference while they were swept away is to be told again."""
        return replace(self, finished=generation, told_failed=min(self.told_failed, generation - 1))


def follow(view: View, standing: Standing) -> tuple[Standing, tuple[RendezvousEvent, ...]]:
    """What the agent has to hear now."""
    if view.closed is not None:
        events = () if standing.told_closed else (Closed(view.closed.exit_code, view.closed.reason),)
        return replace(standing, told_closed=True), events
    if standing.told_excluded:
        return standing, ()
    exclusion = view.excluded.of(standing.node_id, standing.host)
    if exclusion is not None:
        reason = f"this node is left out of job {standing.run_id}, {exclusion.said}"
        return replace(standing, told_excluded=True), (Excluded(reason),)
    if standing.asked is not None:
        return _seat_or_park(view, standing)
    if standing.seated is None:
        return standing, ()
    standing, ended = _ended(view, standing, standing.seated)
    if ended is not None:
        return standing, (ended,)
    growth = view.growth
    if growth is None or growth.generation != standing.seated or growth == standing.told_growth:
        return standing, ()
    if standing.told_failed >= standing.seated:
        return standing, ()
    event = MembershipChanged(growth.generation, growth.waiting, growth.reason)
    return replace(standing, told_growth=growth), (event,)


def _seat_or_park(view: View, standing: Standing) -> tuple[Standing, tuple[RendezvousEvent, ...]]:
    table = view.table
    if table is None:
        return standing, ()
    former = table.generation < (standing.asked or 0) or table.generation == standing.seated
    if former and table.rank_of(standing.node_id) is not None:
        return standing, ()
    world = world_for(table, standing.node_id, standing.run_id)
    if world is not None:
        return replace(standing, seated=table.generation, asked=None), (WorldAgreed(world),)
    if view.failure is not None or table.generation <= standing.told_parked:
        return standing, ()
    full = len(table.seats) >= standing.max_nodes
    reason = f"generation {table.generation} has its {len(table.seats)} nodes; this one waits " + (
        "as a spare" if full else "to be taken in"
    )
    return replace(standing, told_parked=table.generation), (Parked(table.generation, reason),)


def _ended(view: View, standing: Standing, seated: int) -> tuple[Standing, RendezvousEvent | None]:
    """Whether the generation that this node is in has ended without the agent knowing."""
    if standing.told_failed >= seated:
        return standing, None
    failure = view.failures.get(seated)
    event: RendezvousEvent | None = None
    if failure is not None:
        event = _failed(failure, standing)
    elif view.table is not None and view.table.generation > seated:
        # The others would not have gone on without a failure on record; whatever hid it, they run and so must not we.
        event = _given_up(seated, f"generation {view.table.generation} has begun without this node", standing)
    else:
        return standing, None
    return replace(standing, told_failed=seated), event


def _failed(failure: FailureRecord, standing: Standing) -> RendezvousEvent | None:
    if failure.node_id == standing.node_id:
        if failure.kind is FailureKind.LOST:
            reason = f"the others have given this node up: {failure.reason}"
            return _given_up(failure.generation, reason, standing)
        # Who asks for a new generation itself hears nothing of this; who does not was left out and let in again.
        if failure.kind is not FailureKind.ASKED:
            return None
    # Who has finished has no ranks for which it would matter why: it is needed once more.
    if failure.kind is FailureKind.ASKED and not failure.counted and standing.finished != failure.generation:
        return MembershipChanged(failure.generation, 0, f"{failure.node_id}: {failure.reason}")
    return PeerFailed(failure.generation, failure.node_id, failure.reason)


def _given_up(generation: int, reason: str, standing: Standing) -> RendezvousEvent:
    if standing.finished == generation:
        # Its word that it has finished came too late, or not at all; no rank is left that would have to be fenced.
        return PeerFailed(generation, standing.node_id, reason)
    return LeaseLost(generation, reason)
