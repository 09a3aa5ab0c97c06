"""Leaving a node out of a job on request: which node is meant, whether it may be, what follows. Pure."""

from __future__ import annotations

from ftlaunch.rendezvous.common.decide import Limits, Roster, View, is_available
from ftlaunch.rendezvous.common.records import ExclusionsRecord, TableRecord
from ftlaunch.rendezvous.interface import Exclusion, ExclusionAnswer, ExclusionWish, RendezvousError

ANSWER_S = 8.0
"""How long a rendezvous may take to answer a wish; shorter than ``ftctl`` waits."""
_NAMED = 20


def plan(
    wish: ExclusionWish, by: str, view: View, roster: Roster, limits: Limits, hub: str = ""
) -> tuple[ExclusionsRecord | None, ExclusionAnswer]:
    """What is to be put on record (``None``: it stands there already), and the answer.

    ``by`` is the host that asks, ``hub`` the node id of the agent without which there is no rendezvous. Raises
    :class:`RendezvousError` when the node is unknown or ambiguous, or must not be left out.
    """
    if view.closed is not None:
        raise RendezvousError(f"the job has ended: {view.closed.reason}")
    hosts = {seat.node_id: seat.host for seat in (view.table.seats if view.table is not None else ())}
    hosts.update({node.node_id: node.record.host for node in roster.nodes.values()})
    if wish.undo:
        return _readmit(wish.node, hosts, view.excluded)
    name, ids = _resolve(wish.node, hosts, roster)
    known = view.excluded.of(name, hosts[ids[0]])
    if known is not None:
        return None, ExclusionAnswer(name, f"it is so already, {known.said}", changed=False)
    if hub in ids:
        raise RendezvousError(f"{name} hosts the rendezvous, which the job cannot do without; ftctl stop ends the job")
    short, effect = _effect(name, ids, view, roster, limits)
    if short and not wish.force:
        raise RendezvousError(f"{effect}; --force does it all the same")
    excluded = view.excluded
    entries = (*excluded.entries, Exclusion(name, wish.reason, by))
    return ExclusionsRecord(excluded.revision + 1, entries), ExclusionAnswer(name, effect)


def _readmit(node: str, hosts: dict[str, str], excluded: ExclusionsRecord) -> tuple[ExclusionsRecord, ExclusionAnswer]:
    known = excluded.of(node, hosts.get(node, node))
    if known is None:
        names = ", ".join(one.name for one in excluded.entries)
        raise RendezvousError(f"node {node} is not excluded; " + (f"excluded: {names}" if names else "none is"))
    entries = tuple(one for one in excluded.entries if one is not known)
    return ExclusionsRecord(excluded.revision + 1, entries), ExclusionAnswer(known.name, "it may join again")


def _resolve(node: str, hosts: dict[str, str], roster: Roster) -> tuple[str, list[str]]:
    """The name to put on record, and the node ids it stands for. By host if that is unique: ids die with agents."""
    host = hosts.get(node, node)
    ids = [node_id for node_id, its_host in hosts.items() if its_host == host]
    if not ids:
        known = sorted(f"{its_host} ({node_id})" for node_id, its_host in hosts.items())
        some = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
        raise RendezvousError(f"no node {node} in this job; " + (f"its nodes: {some}" if some else "it has none yet"))
    alive = sorted(node_id for node_id in ids if node_id in roster.nodes)
    if len(alive) < 2:
        return host, ids
    if node in hosts:
        return node, [node]
    raise RendezvousError(f"{len(alive)} agents run on host {host}, say which one: {', '.join(alive)}")


def _effect(name: str, ids: list[str], view: View, roster: Roster, limits: Limits) -> tuple[bool, str]:
    """Whether too few are left to go on, and what follows in any case."""
    table = view.table
    seated = table is not None and any(table.rank_of(node_id) is not None for node_id in ids)
    if table is not None and not seated and _goes_on(view, table, roster):
        return False, f"generation {table.generation} does without it"
    left = {i: n for i, n in roster.nodes.items() if i not in ids and view.excluded.of(i, n.record.host) is None}
    if len(left) < limits.min_nodes:
        are = "is" if len(left) == 1 else "are"
        return True, (
            f"without {name} only {len(left)} of the {limits.min_nodes} nodes that the job needs {are} left: its ranks "
            f"stop until another node comes, and after {limits.window_s:g} s it ends with 69"
        )
    if table is None:
        return False, "the job begins without it"
    spares = sorted(i for i, n in left.items() if table.rank_of(i) is None and is_available(n, view))
    if seated and spares and len(left) >= len(table.seats):
        return False, f"{spares[0] if len(spares) == 1 else 'a spare'} takes its place"
    size = min(len(left), limits.max_nodes)
    return False, f"the job goes on with {size} node{'s' * (size != 1)}"


def _goes_on(view: View, table: TableRecord, roster: Roster) -> bool:
    """Whether the latest generation stays; else the next one may need whoever waits."""
    done = {node_id for node_id, generation in roster.finished.items() if generation == table.generation}
    return view.failure is None and all(
        seat.node_id in done or (seat.node_id in roster.nodes and view.excluded.of(seat.node_id, seat.host) is None)
        for seat in table.seats
    )
