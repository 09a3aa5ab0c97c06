"""Leaving nodes out on request: who is meant, what is put on record, what nodes and leader do then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ftlaunch.rendezvous.common.decide import (
    Agree,
    Decision,
    DeclareEnded,
    Grow,
    Limits,
    Roster,
    Standing,
    Timing,
    View,
    Wait,
    follow,
    lead,
)
from ftlaunch.rendezvous.common.exclusion import plan
from ftlaunch.rendezvous.common.leading import Round
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    NodeRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import Node, seat_of
from ftlaunch.rendezvous.interface import Closed, Excluded, Exclusion, ExclusionWish, RendezvousError, WorldAgreed

HOT = Exclusion("h-b", "hot", "h-a")


def node(name: str, asked: int | None = 0, host: str = "") -> Node:
    return Node(NodeRecord(name, host or f"h-{name}", 1, "addr", 7, 1, asked=asked), ord(name))


def roster(*nodes: Node, finished: Mapping[str, int] | None = None) -> Roster:
    return Roster({n.node_id: n for n in nodes}, finished or {})


def running(*nodes: Node, excluded: tuple[Exclusion, ...] = ()) -> View:
    table = TableRecord(0, "t", tuple(seat_of(one) for one in nodes), "addr", 1, 0)
    return View(table=table, excluded=ExclusionsRecord(len(excluded), excluded))


def ended(view: View) -> View:
    failure = FailureRecord(0, FailureKind.ASKED, "b", "h-b", HOT.said, "f", counted=False)
    return replace(view, failures={0: failure})


A, B, S = node("a"), node("b"), node("s")
TWO, RANGE = Limits(2, 2, 30.0, 600.0), Limits(1, 4, 30.0, 600.0)


# --- the wish ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["b", "h-b"])
def test_a_node_is_put_on_record_by_its_host(name: str) -> None:
    record, answer = plan(ExclusionWish(name, "hot"), "h-a", running(A, B), roster(A, B, S), TWO)
    assert record == ExclusionsRecord(1, (HOT,))
    assert (answer.name, answer.effect, answer.changed) == ("h-b", "s takes its place", True)


def test_of_several_agents_on_one_host_only_the_one_is_left_out() -> None:
    twin = node("t", host="h-b")
    record, answer = plan(ExclusionWish("b"), "h-a", running(A, B), roster(A, B, twin), TWO)
    assert record is not None and record.entries == (Exclusion("b", "", "h-a"),)
    assert answer.effect == "t takes its place"
    with pytest.raises(RendezvousError, match="2 agents run on host h-b, say which one: b, t"):
        plan(ExclusionWish("h-b"), "h-a", running(A, B), roster(A, B, twin), TWO)


def test_a_node_that_has_gone_can_be_kept_from_coming_back() -> None:
    record, _ = plan(ExclusionWish("h-b"), "h-a", running(A, B), roster(A), RANGE)
    assert record is not None and record.entries[0].name == "h-b"


@pytest.mark.parametrize(
    ("limits", "present", "effect"),
    [
        (RANGE, (A, B), "the job goes on with 1 node"),
        (Limits(1, 2, 0, 0), (A, node("c"), B), "c takes its place"),
        (RANGE, (A, B, S, node("x")), "a spare takes its place"),
        (TWO, (A, B, S), "s takes its place"),
    ],
)
def test_what_follows_is_told(limits: Limits, present: tuple[Node, ...], effect: str) -> None:
    assert plan(ExclusionWish("b"), "h-a", running(A, B), roster(*present), limits)[1].effect == effect


def test_a_node_without_a_seat_is_not_missed() -> None:
    assert (
        plan(ExclusionWish("s"), "x", running(A, B), roster(A, B, S), TWO)[1].effect == "generation 0 does without it"
    )
    assert plan(ExclusionWish("b"), "x", View(), roster(A, B, S), TWO)[1].effect == "the job begins without it"


@pytest.mark.parametrize("present", [(A, B), (A, B, node("s", None))])
def test_too_few_are_left_only_by_force(present: tuple[Node, ...]) -> None:
    view = running(A, B)
    if len(present) == 3:
        view = replace(view, excluded=ExclusionsRecord(1, (Exclusion("h-s", "", "x"),)))
    with pytest.raises(RendezvousError, match=r"only 1 of the 2 nodes that the job needs is left.*--force"):
        plan(ExclusionWish("b"), "h-a", view, roster(*present), TWO)
    record, answer = plan(ExclusionWish("b", force=True), "h-a", view, roster(*present), TWO)
    assert record is not None and record.revision == view.excluded.revision + 1
    assert "until another node comes, and after 600 s it ends with 69" in answer.effect


@pytest.mark.parametrize(
    ("view", "present"),
    [
        (running(A, B, excluded=(HOT,)), (A, B, S)),
        (running(A, B, excluded=(HOT,)), (A, S)),
        (replace(running(A, B), failures={0: FailureRecord(0, FailureKind.LOST, "b", "h-b", "", "f")}), (A, S)),
        (running(A, B), (A, S)),
    ],
    ids=["member is excluded", "and has left", "member is lost", "member has gone"],
)
def test_a_spare_that_is_to_take_a_place_is_missed(view: View, present: tuple[Node, ...]) -> None:
    with pytest.raises(RendezvousError, match=r"without h-s only 1 of the 2 nodes that the job needs is left.*--force"):
        plan(ExclusionWish("s"), "x", view, roster(*present), TWO)
    more = (*present, node("u"))
    assert plan(ExclusionWish("s"), "x", view, roster(*more), TWO)[1].effect == "the job goes on with 2 nodes"


def test_a_spare_is_not_missed_when_the_excluded_member_has_finished() -> None:
    view, nodes = running(A, B, excluded=(HOT,)), roster(A, B, S, finished={"b": 0})
    assert plan(ExclusionWish("s"), "x", view, nodes, TWO)[1].effect == "generation 0 does without it"


def test_who_is_out_already_is_not_put_on_record_again() -> None:
    record, answer = plan(ExclusionWish("b"), "x", running(A, B, excluded=(HOT,)), roster(A, B), RANGE)
    assert record is None and not answer.changed
    assert answer.effect == "it is so already, excluded with ftctl on h-a: hot"


@pytest.mark.parametrize("undo", [False, True])
def test_nobody_of_that_name(undo: bool) -> None:
    with pytest.raises(RendezvousError) as error:
        plan(ExclusionWish("z", undo=undo), "x", running(A, B, excluded=(HOT,)), roster(A, B), RANGE)
    text = "node z is not excluded; excluded: h-b" if undo else "no node z in this job; its nodes: h-a (a), h-b (b)"
    assert str(error.value) == text


def test_the_names_of_a_thousand_nodes_are_not_all_listed() -> None:
    many = [Node(NodeRecord(f"n{i:03}", f"h{i:03}", 1, "addr", 7, 1), i) for i in range(1000)]
    with pytest.raises(RendezvousError, match="and 980 more") as error:
        plan(ExclusionWish("z"), "x", View(), roster(*many), RANGE)
    assert len(str(error.value)) < 500


def test_the_hosting_node_cannot_be_spared_and_an_ended_job_not_be_changed() -> None:
    with pytest.raises(RendezvousError, match="h-a hosts the rendezvous"):
        plan(ExclusionWish("a", force=True), "x", running(A, B), roster(A, B), RANGE, hub="a")
    over = replace(running(A, B), closed=ClosedRecord(0, "all finished", "a", "h-a", "c"))
    with pytest.raises(RendezvousError, match="the job has ended: all finished"):
        plan(ExclusionWish("b"), "x", over, roster(A, B), RANGE)


@pytest.mark.parametrize("name", ["h-b", "b"])
def test_undoing_takes_the_one_entry_away(name: str) -> None:
    other = Exclusion("h-s", "", "x")
    record, answer = plan(
        ExclusionWish(name, undo=True), "x", running(A, B, excluded=(HOT, other)), roster(A, B), RANGE
    )
    assert record == ExclusionsRecord(3, (other,))
    assert (answer.name, answer.effect) == ("h-b", "it may join again")


# --- the leader -------------------------------------------------------------------------------------------------------


def decide(view: View, nodes: Roster, limits: Limits, now: float = 0.0) -> Decision:
    return lead(view, nodes, limits, Timing(0.0, 0.0), now)


def seated(decision: Decision) -> str:
    assert isinstance(decision.step, Agree), decision
    return "".join(n.node_id for n in decision.step.nodes)


def test_the_generation_of_an_excluded_member_ends_and_does_not_count() -> None:
    decision = decide(running(A, B, excluded=(HOT,)), roster(A, B), TWO)
    assert decision == Decision(DeclareEnded(0, "b", "h-b", False), "excluded with ftctl on h-a: hot")
    over = decide(ended(running(A, B, excluded=(HOT,))), roster(node("a", 1), S), TWO)
    assert seated(over) == "as"
    assert isinstance(over.step, Agree) and over.step.restart_count == 0


def test_a_member_that_has_finished_may_stay_where_it_is() -> None:
    view = running(A, B, excluded=(HOT,))
    assert decide(view, roster(A, B, finished={"b": 0}), TWO).step == Wait()
    again = decide(ended(view), roster(node("a", 1), B, S, finished={"b": 0}), TWO)
    assert seated(again) == "as", "it has no ranks that could be in the way"


def test_the_next_generation_waits_until_the_excluded_node_has_left() -> None:
    view = ended(running(A, B, excluded=(HOT,)))
    decision = decide(view, roster(node("a", 1), B, S), TWO)
    assert decision.step == Wait(30.0, incomplete=True)
    assert "excluded: b" in decision.reason and "not back yet" not in decision.reason
    assert seated(decide(view, roster(node("a", 1), B, S), TWO, now=30.0)) == "as"


def test_the_world_shrinks_without_a_last_call_for_an_excluded_node() -> None:
    assert seated(decide(ended(running(A, B, excluded=(HOT,))), roster(node("a", 1)), RANGE)) == "a"


def test_an_excluded_node_is_not_taken_in_nor_waited_for_nor_counted_as_waiting() -> None:
    out = (Exclusion("h-s", "", "x"),)
    assert decide(running(A, B, excluded=out), roster(A, B, S), RANGE).step == Wait()
    assert decide(running(A, B, excluded=out), roster(A, B, S, node("x")), RANGE).step == Grow(0, 1)
    below = decide(ended(running(A, B, excluded=(HOT,))), roster(node("a", 1), node("n", 1, host="h-b")), TWO)
    assert isinstance(below.step, Wait) and "1 of 2 nodes are there; excluded: b" in below.reason


def test_an_excluded_node_that_asks_again_and_again_prolongs_no_last_call() -> None:
    view = ended(running(A, B, excluded=(HOT,)))
    first = Round().seen(view, roster(node("a", 1)), 10.0)
    later = first.seen(view, roster(node("a", 1), node("n", 1, host="h-b")), 20.0)
    assert later.timing == first.timing
    assert first.seen(view, roster(node("a", 1), S), 20.0).timing.asked_at == 20.0


# --- the node ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seat", "asked"), [(0, None), (None, 0), (0, 1), (None, None)])
def test_a_node_is_told_once_that_it_is_left_out(seat: int | None, asked: int | None) -> None:
    before = Standing("b", "job", 2, seated=seat, asked=asked, host="h-b")
    after, events = follow(running(A, B, excluded=(HOT,)), before)
    assert events == (Excluded("this node is left out of job job, excluded with ftctl on h-a: hot"),)
    assert follow(running(A, B, excluded=(HOT,)), after) == (after, ())
    assert follow(ended(running(A, B)), after) == (after, ()), (
        "also when it is let in again at once: it is on its way out"
    )


def test_others_go_on_as_before() -> None:
    view = running(A, B, excluded=(HOT,))
    after, events = follow(view, Standing("a", "job", 2, asked=0, host="h-a"))
    assert isinstance(events[0], WorldAgreed) and not after.told_excluded


def test_the_end_of_the_job_goes_first() -> None:
    view = replace(running(A, B, excluded=(HOT,)), closed=ClosedRecord(0, "done", "a", "h-a", "c"))
    assert follow(view, Standing("b", "job", 2, seated=0, host="h-b"))[1] == (Closed(0, "done"),)


# --- the record -------------------------------------------------------------------------------------------------------


def test_the_record_survives_the_wire() -> None:
    record = ExclusionsRecord(3, (HOT, Exclusion('n\n"', "wärme", "x")))
    assert ExclusionsRecord.decode(record.encode()) == record


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b'{"v":1}',
        b'{"v":1,"revision":"1","entries":[]}',
        b'{"v":1,"revision":1,"entries":[7]}',
        b'{"v":1,"revision":1,"entries":[{"name":1,"reason":"","by":""}]}',
    ],
)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        ExclusionsRecord.decode(value)
