"""Who sits where in the next generation. Pure: the same input gives the same table on every node.

A node that stays keeps its group rank; a newcomer takes the place of the node that it replaces; when the world shrinks,
only nodes from beyond its new end move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.rendezvous.common.records import FailureKind, FailureRecord, NodeRecord, Seat, TableRecord
from ftlaunch.rendezvous.interface import Member, World


@dataclass(frozen=True)
class Node:
    """A living agent as the leader sees it. ``since`` is its place in the order of arrival."""

    record: NodeRecord
    since: int
    lease: int = 0

    @property
    def node_id(self) -> str:
        """Unique per agent process."""
        return self.record.node_id


SUSPECT_WINDOW = 6
"""So many generations back a failure is held against its host."""
SUSPECT_TIMES = 3


def suspects(failures: Mapping[int, FailureRecord], generation: int) -> frozenset[str]:
    """Hosts whose ranks were the first cause of SUSPECT_TIMES of the SUSPECT_WINDOW generations before this one."""
    recent = (failures.get(generation - back) for back in range(1, SUSPECT_WINDOW + 1))
    blamed = Counter(one.host for one in recent if one is not None and one.kind is FailureKind.FAILED)
    return frozenset(host for host, times in blamed.items() if times >= SUSPECT_TIMES)


def arrange(
    former: Sequence[Seat], nodes: Iterable[Node], limit: int, passed_over: Container[str] = ()
) -> tuple[Node, ...]:
    """Choose at most ``limit`` of the nodes and put them in group rank order; former members go first.

    ``passed_over``: hosts that get a seat only when nobody else wants it.
    """
    by_id = {node.node_id: node for node in nodes}
    rank_of = {seat.node_id: rank for rank, seat in enumerate(former)}
    members = sorted((by_id[i] for i in by_id if i in rank_of), key=lambda node: rank_of[node.node_id])
    others = sorted((by_id[i] for i in by_id if i not in rank_of), key=_arrival)
    # Stable: within both halves members come before newcomers, in order.
    wanted = sorted([*members, *others], key=lambda node: node.record.host in passed_over)[:limit]
    staying = [node for node in members if node in wanted]
    newcomers = [node for node in others if node in wanted]
    size = len(staying) + len(newcomers)
    places: dict[int, Node] = {rank_of[n.node_id]: n for n in staying if rank_of[n.node_id] < size}
    moving = [n for n in staying if rank_of[n.node_id] >= size]
    if former:
        newcomers = _return_to_place(newcomers, places, size)
    waiting = iter([*moving, *newcomers])
    return tuple(places[rank] if rank in places else next(waiting) for rank in range(size))


def _return_to_place(newcomers: list[Node], places: dict[int, Node], size: int) -> list[Node]:
    """Give a newcomer with a node rank of its own (a replaced pod has the index of the old one) that very place."""
    rest = []
    for node in newcomers:
        order = node.record.order
        if order is not None and 0 <= order < size and order not in places:
            places[order] = node
        else:
            rest.append(node)
    return rest


def _arrival(node: Node) -> tuple[bool, int, int]:
    order = node.record.order
    return (order is None, order or 0, node.since)


def seat_of(node: Node) -> Seat:
    """What the others need to know of a node."""
    record = node.record
    return Seat(record.node_id, record.host, record.address, record.slots, record.peer_port)


def world_for(table: TableRecord, node_id: str, run_id: str) -> World | None:
    """The table as one node sees it; ``None`` for a node that is not seated."""
    group_rank = table.rank_of(node_id)
    if group_rank is None:
        return None
    return World(
        generation=table.generation,
        members=tuple(Member(s.node_id, s.host, rank, s.slots) for rank, s in enumerate(table.seats)),
        group_rank=group_rank,
        rank_offset=sum(seat.slots for seat in table.seats[:group_rank]),
        world_size=sum(seat.slots for seat in table.seats),
        master_addr=table.master_address,
        master_port=table.master_port,
        restart_count=table.restart_count,
        run_id=run_id,
        shared=table.shared,
    )


def difference(mine: Mapping[str, str], theirs: Mapping[str, str], me: str, them: str) -> str | None:
    """Name the settings that differ and both sides; ``None`` when all agree."""
    unlike = [
        f"{name} is {mine.get(name, 'not set')} on {me} but {theirs.get(name, 'not set')} on {them}"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]
    return "; ".join(unlike) or None
