"""Who sits where: stable group ranks, first orders, replacements, shrinking, growing."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.rendezvous.common.records import FailureKind, FailureRecord, NodeRecord, Seat, TableRecord
from ftlaunch.rendezvous.common.table import Node, arrange, difference, seat_of, suspects, world_for


def node(name: str, since: int = 1, order: int | None = None, slots: int = 2) -> Node:
    return Node(NodeRecord(name, f"host-{name}", 1, f"addr-{name}", 7, slots, order=order, asked=0), since)


def seats(names: str) -> tuple[Seat, ...]:
    return tuple(seat_of(node(name)) for name in names)


def order(former: str, nodes: list[Node], limit: int = 99) -> str:
    return "".join(n.node_id for n in arrange(seats(former), nodes, limit))


@pytest.mark.parametrize(
    ("former", "present", "limit", "expected"),
    [
        ("", "abc", 3, "abc"),
        ("", "abc", 2, "ab"),
        ("cab", "abc", 3, "cab"),
        ("abc", "acx", 3, "axc"),
        ("abc", "bcx", 3, "xbc"),
        ("abc", "ac", 3, "ac"),
        ("abcd", "bd", 4, "db"),
        ("ab", "abx", 3, "abx"),
        ("ab", "abxy", 2, "ab"),
        ("abc", "xyz", 3, "xyz"),
        ("abc", "c", 3, "c"),
    ],
)
def test_a_node_that_stays_keeps_its_place(former: str, present: str, limit: int, expected: str) -> None:
    nodes = [node(name, since) for since, name in enumerate(present)]
    assert {order(former, list(shuffled), limit) for shuffled in permutations(nodes)} == {expected}


def test_the_first_order_follows_node_ranks_then_arrival() -> None:
    nodes = [node("late", 9), node("early", 3), node("two", 8, order=2), node("zero", 7, order=0)]
    assert [n.node_id for n in arrange((), nodes, 4)] == ["zero", "two", "early", "late"]


def test_a_replaced_pod_gets_the_place_of_its_index() -> None:
    nodes = [node("a", 1, order=0), node("x", 5, order=2), node("y", 4)]
    assert order("abc", nodes) == "ayx"


@given(
    former=st.permutations("abcdef"), present=st.sets(st.sampled_from("abcdefxyz"), min_size=1), limit=st.integers(1, 9)
)
def test_arranging_loses_and_doubles_nobody(former: list[str], present: set[str], limit: int) -> None:
    result = arrange(seats("".join(former)), [node(name, ord(name)) for name in present], limit)
    names = [n.node_id for n in result]
    assert len(names) == len(set(names)) == min(limit, len(present))
    stayed = [n for n in former if n in present]
    assert set(stayed[:limit]) <= set(names)
    assert all(names[former.index(n)] == n for n in stayed if n in names and former.index(n) < len(names))


def test_a_world_counts_ranks_before_this_node() -> None:
    members = tuple(seat_of(node(name, slots=slots)) for name, slots in (("a", 4), ("b", 2), ("c", 8)))
    table = TableRecord(3, "t", members, "addr-a", 4711, 2, {"resume": "x"})
    world = world_for(table, "c", "job")
    assert world is not None
    assert (world.group_rank, world.rank_offset, world.world_size, world.generation) == (2, 6, 14, 3)
    assert (world.master_addr, world.master_port, world.restart_count, world.run_id) == ("addr-a", 4711, 2, "job")
    assert [m.host for m in world.members] == ["host-a", "host-b", "host-c"]
    assert world.shared == {"resume": "x"}
    assert world_for(table, "x", "job") is None


def test_differences_name_both_sides() -> None:
    text = difference({"nproc": "8", "script": "a.py"}, {"nproc": "4", "script": "a.py", "torch": "2"}, "n1", "n2")
    assert text == "nproc is 8 on n1 but 4 on n2; torch is not set on n1 but 2 on n2"
    assert difference({"nproc": "8"}, {"nproc": "8"}, "n1", "n2") is None


def failed(generation: int, host: str, kind: FailureKind = FailureKind.FAILED) -> FailureRecord:
    return FailureRecord(generation, kind, host, host, "died", "x")


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("aaa", "a"),
        ("aa", ""),
        ("abab", ""),
        ("ababa", "a"),
        ("aaabbb", "ab"),
        ("aaabbbccc", "bc"),
    ],
)
def test_host_that_was_the_first_cause_again_and_again_is_a_suspect(hosts: str, expected: str) -> None:
    failures = {generation: failed(generation, host) for generation, host in enumerate(hosts)}
    assert suspects(failures, len(hosts)) == frozenset(expected)


def test_node_that_was_lost_is_no_suspect() -> None:
    failures = {generation: failed(generation, "a", FailureKind.LOST) for generation in range(5)}
    assert suspects(failures, 5) == frozenset()


def test_suspect_is_passed_over_only_when_somebody_else_is_there() -> None:
    three = [node("a"), node("b"), node("c", since=9)]
    assert [n.node_id for n in arrange(seats("ab"), three, 2, {"host-a"})] == ["c", "b"]
    assert [n.node_id for n in arrange(seats("ab"), three[:2], 2, {"host-a"})] == ["a", "b"]
    assert [n.node_id for n in arrange(seats("ab"), three, 3, {"host-a"})] == ["a", "b", "c"]
