"""The decisions of the leader and what a node hears, as tables over made-up snapshots and clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ftlaunch.rendezvous.common.decide import (
    Agree,
    Decision,
    DeclareEnded,
    DeclareLost,
    Finish,
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
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    FailureKind,
    FailureRecord,
    GrowthRecord,
    NodeRecord,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import Node, seat_of
from ftlaunch.rendezvous.interface import Closed, LeaseLost, MembershipChanged, Parked, PeerFailed, WorldAgreed

LAST_CALL_S, WINDOW_S = 30.0, 600.0


def node(name: str, asked: int | None = 0, counted: bool = True, since: int = 0) -> Node:
    return Node(NodeRecord(name, f"h-{name}", 1, "addr", 7, 1, asked=asked, counted=counted), since or ord(name))


def table(names: str, generation: int = 0, restarts: int = 0, absent: Mapping[str, int] | None = None) -> TableRecord:
    seats = tuple(seat_of(node(name)) for name in names)
    return TableRecord(generation, "t", seats, "addr", 1, restarts, absent=absent or {})


def failure(
    generation: int = 0, kind: FailureKind = FailureKind.FAILED, who: str = "a", counted: bool = True
) -> FailureRecord:
    return FailureRecord(generation, kind, who, f"h-{who}", "boom", "f", counted)


def running(names: str, generation: int = 0) -> View:
    return View(table=table(names, generation))


def failed(names: str, generation: int = 0, kind: FailureKind = FailureKind.FAILED, counted: bool = True) -> View:
    return View(table=table(names, generation), failures={generation: failure(generation, kind, counted=counted)})


def roster(*nodes: Node, finished: Mapping[str, int] | None = None) -> Roster:
    return Roster({n.node_id: n for n in nodes}, finished or {})


def decide(
    view: View, nodes: Roster, size: tuple[int, int], now: float = 0.0, asked_at: float = 0.0, patient: float = -1.0
) -> Decision:
    return lead(view, nodes, Limits(*size, LAST_CALL_S, WINDOW_S), Timing(0.0, asked_at, patient), now)


def seated(decision: Decision) -> str:
    assert isinstance(decision.step, Agree), decision
    return "".join(n.node_id for n in decision.step.nodes)


# --- the first generation ---------------------------------------------------------------------------------------------


def test_a_fixed_size_is_agreed_at_the_last_join_without_a_last_call() -> None:
    assert isinstance(decide(View(), roster(node("a")), (2, 2)).step, Wait)
    decision = decide(View(), roster(node("a"), node("b")), (2, 2))
    assert seated(decision) == "ab"
    assert isinstance(decision.step, Agree)
    assert (decision.step.generation, decision.step.restart_count) == (0, 0)


@pytest.mark.parametrize(
    ("present", "now", "asked_at", "expected"),
    [
        ("a", 1e6, 0, None),
        ("ab", 29.9, 0, None),
        ("ab", 30.0, 0, "ab"),
        ("ab", 49.9, 20, None),
        ("ab", 50.0, 20, "ab"),
        ("abc", 50.0, 40, None),
        ("abc", 600.0, 599, "abc"),
        ("abcd", 0.0, 0, "abcd"),
        ("abcde", 0.0, 0, "abcd"),
    ],
)
def test_a_range_closes_at_max_or_after_the_last_call(
    present: str, now: float, asked_at: float, expected: str | None
) -> None:
    decision = decide(View(), roster(*map(node, present)), (2, 4), now, asked_at)
    if expected is None:
        assert isinstance(decision.step, Wait)
        assert decision.step.incomplete
        assert decision.reason
    else:
        assert seated(decision) == expected


def test_the_deadline_of_the_last_call_is_told() -> None:
    step = decide(View(), roster(node("a"), node("b")), (2, 4), 10, 5).step
    assert isinstance(step, Wait)
    assert step.until == 35.0


def test_nodes_that_have_not_asked_do_not_count() -> None:
    assert isinstance(decide(View(), roster(node("a"), node("b", None)), (2, 2)).step, Wait)


# --- after a failure --------------------------------------------------------------------------------------------------


def test_former_members_are_waited_for_although_a_spare_is_there() -> None:
    nodes = roster(node("a", 1), node("b"), node("s"))
    decision = decide(failed("ab"), nodes, (2, 2), now=1)
    assert decision.step == Wait(LAST_CALL_S, incomplete=True)
    assert "not back yet: b" in decision.reason
    assert seated(decide(failed("ab"), roster(node("a", 1), node("b", 1), node("s")), (2, 2))) == "ab"


def test_a_member_that_never_asks_loses_its_seat_after_the_last_call() -> None:
    decision = decide(failed("ab"), roster(node("a", 1), node("b"), node("s")), (2, 2), now=LAST_CALL_S)
    assert seated(decision) == "as"
    assert isinstance(decision.step, Agree)
    assert decision.step.absent == {"b": 1}


def test_a_spare_takes_the_rank_of_a_dead_node_at_once() -> None:
    decision = decide(failed("abc", kind=FailureKind.LOST), roster(node("a", 1), node("c", 1), node("s")), (3, 3))
    assert seated(decision) == "asc"


def test_nobody_goes_on_while_the_ranks_of_a_silent_member_may_live() -> None:
    """Its agent is stopped, say: its guardian ends them before its lease is over. Who is gone is not waited for."""
    limits = Limits(1, 2, LAST_CALL_S, WINDOW_S, node_timeout_s=LAST_CALL_S + 5.0)
    view, timing = failed("ab"), Timing(0.0, 0.0)
    asks, silent = node("a", 1), node("b", 0)
    waiting = lead(view, roster(asks, silent), limits, timing, LAST_CALL_S + 1.0)
    assert waiting.step == Wait(LAST_CALL_S + 5.0, incomplete=True)
    assert seated(lead(view, roster(asks, silent), limits, timing, LAST_CALL_S + 5.0)) == "a"
    assert seated(lead(view, roster(asks), limits, timing, LAST_CALL_S)) == "a"


def test_without_a_spare_the_world_shrinks_after_the_last_call() -> None:
    nodes = roster(node("a", 1), node("c", 1))
    assert isinstance(decide(failed("abc"), nodes, (2, 3), now=29).step, Wait)
    assert seated(decide(failed("abc"), nodes, (2, 3), now=30)) == "ac"


def test_below_the_minimum_the_leader_waits_and_says_whom_it_misses() -> None:
    decision = decide(failed("abc"), roster(node("a", 1), node("c", 0)), (3, 3), now=1e6)
    assert isinstance(decision.step, Wait)
    assert "1 of 3 nodes are there" in decision.reason
    assert "not back yet: c" in decision.reason
    assert "gone: b" in decision.reason


def test_a_shrunken_world_goes_on_with_what_it_had_and_takes_waiting_nodes_along() -> None:
    assert seated(decide(failed("ab"), roster(node("a", 1), node("b", 1)), (1, 4))) == "ab"
    assert seated(decide(failed("ab"), roster(node("a", 1), node("b", 1), node("x")), (1, 4))) == "abx"


def test_a_member_that_lost_its_seat_asks_anew_before_it_counts() -> None:
    view = View(table=table("as", 1, absent={"b": 1}), failures={1: failure(1)})
    nodes = (node("a", 2), node("s", 2))
    # What b asked for before its seat was given away is no longer what it wants.
    decision = decide(view, roster(*nodes, node("b", 0)), (3, 3))
    assert isinstance(decision.step, Wait)
    assert seated(decide(view, roster(*nodes, node("b", 1)), (3, 3))) == "asb"


def test_the_next_number_is_what_nodes_ask_for_even_if_the_table_is_gone() -> None:
    step = decide(View(), roster(node("a", 8), node("b", 8)), (2, 2)).step
    assert isinstance(step, Agree)
    assert step.generation == 8


def test_twenty_failures_with_a_surplus_agent_keep_the_world_at_two() -> None:
    current = table("ab")
    for generation in range(20):
        view = View(table=current, failures={generation: failure(generation)})
        nodes = roster(node("a", generation + 1), node("b", generation + 1), node("s"))
        decision = decide(view, nodes, (2, 2))
        assert seated(decision) == "ab"
        assert isinstance(decision.step, Agree)
        current = table("ab", decision.step.generation, decision.step.restart_count)
    assert current.restart_count == 20


@pytest.mark.parametrize(
    ("kind", "record_counts", "nodes_count", "expected"),
    [
        (FailureKind.FAILED, True, (True, True), 4),
        (FailureKind.FAILED, True, (False, True), 4),
        (FailureKind.FAILED, True, (False, False), 3),
        (FailureKind.ASKED, False, (True, True), 3),
        (FailureKind.ASKED, True, (True, True), 4),
        (FailureKind.LOST, True, (True, True), 3),
        (FailureKind.LEFT, True, (True, True), 3),
    ],
)
def test_restarts_are_counted_as_torchrun_does(
    kind: FailureKind, record_counts: bool, nodes_count: tuple[bool, bool], expected: int
) -> None:
    view = View(table=table("ab", 5, restarts=3), failures={5: failure(5, kind, counted=record_counts)})
    nodes = roster(node("a", 6, nodes_count[0]), node("b", 6, nodes_count[1]))
    step = decide(view, nodes, (2, 2)).step
    assert isinstance(step, Agree)
    assert step.restart_count == expected


def test_the_count_survives_all_agents() -> None:
    view = View(table=table("ab", 5, restarts=3), failures={5: failure(5, FailureKind.LOST)})
    step = decide(view, roster(node("x"), node("y")), (2, 2)).step
    assert isinstance(step, Agree)
    assert (step.generation, step.restart_count) == (6, 3)


# --- while a generation runs ------------------------------------------------------------------------------------------


def test_a_member_without_a_key_is_lost() -> None:
    decision = decide(running("ab"), roster(node("a")), (2, 2))
    assert decision.step == DeclareLost(0, ("b",))


def test_after_an_outage_members_get_time_to_come_back() -> None:
    assert decide(running("ab"), roster(node("a")), (2, 2), now=4, patient=5).step == Wait(5)
    assert isinstance(decide(running("ab"), roster(node("a")), (2, 2), now=5, patient=5).step, DeclareLost)


def test_a_finished_node_may_be_gone() -> None:
    nodes = roster(node("a"), finished={"b": 0})
    assert isinstance(decide(running("ab"), nodes, (2, 2)).step, Wait)
    assert decide(running("ab"), roster(node("a"), finished={"a": 0, "b": 0}), (2, 2)).step == Finish(0)


def test_a_finish_of_an_older_generation_means_nothing() -> None:
    assert isinstance(decide(running("ab", 1), roster(node("a"), finished={"a": 0, "b": 0}), (2, 2)).step, DeclareLost)


def test_waiting_nodes_are_announced_once_when_there_is_room() -> None:
    nodes = roster(node("a"), node("b"), node("x"), node("y"))
    assert isinstance(decide(running("ab"), nodes, (1, 2)).step, Wait)
    decision = decide(running("ab"), nodes, (1, 4))
    assert decision.step == Grow(0, 2)
    told = replace(running("ab"), growth=GrowthRecord(0, 2, "two"))
    assert isinstance(decide(told, nodes, (1, 4)).step, Wait)
    assert decide(told, roster(*nodes.nodes.values(), node("z")), (1, 5)).step == Grow(0, 3)


def test_a_member_that_asks_for_more_ends_the_generation_even_if_its_words_got_lost() -> None:
    nodes = roster(node("a", 1), node("b", 0))
    assert decide(running("ab"), nodes, (2, 2), now=10.9, asked_at=10).step == Wait(11)
    step = decide(running("ab"), nodes, (2, 2), now=11, asked_at=10).step
    assert isinstance(step, DeclareEnded)
    assert (step.generation, step.node_id) == (0, "a")


def test_a_closed_job_needs_no_decision() -> None:
    view = replace(running("ab"), closed=ClosedRecord(0, "done", "a", "h", "c"))
    assert decide(view, roster(), (2, 2)).step == Wait()


# --- what a node hears ------------------------------------------------------------------------------------------------


def standing(me: str = "b", seated: int | None = None, asked: int | None = None, limit: int = 2) -> Standing:
    return Standing(me, "job", limit, seated=seated, asked=asked)


def test_an_asked_for_world_is_told_once() -> None:
    after, events = follow(running("ab"), standing(asked=0))
    assert [type(e) for e in events] == [WorldAgreed]
    assert (after.seated, after.asked) == (0, None)
    assert follow(running("ab"), after) == (after, ())


def test_a_table_of_the_former_generation_is_no_answer() -> None:
    before = standing(seated=0, asked=1)
    assert follow(failed("ab"), before) == (before, ())
    _, events = follow(running("ab", 1), before)
    assert isinstance(events[0], WorldAgreed)


def test_a_newcomer_is_seated_in_a_later_generation_than_it_asked_for() -> None:
    after, events = follow(running("ab", 7), standing(asked=0))
    assert isinstance(events[0], WorldAgreed)
    assert after.seated == 7


def test_a_surplus_node_is_parked_once_per_generation() -> None:
    after, events = follow(running("ab"), standing("s", asked=0))
    assert [type(e) for e in events] == [Parked]
    assert "spare" in events[0].reason
    assert follow(running("ab"), after)[1] == ()
    assert follow(failed("ab"), after)[1] == ()
    assert [type(e) for e in follow(running("ab", 1), after)[1]] == [Parked]


def test_a_node_with_room_for_it_is_told_that_it_will_be_taken_in() -> None:
    (event,) = follow(running("ab"), standing("s", asked=0, limit=4))[1]
    assert isinstance(event, Parked)
    assert "taken in" in event.reason


def test_a_failure_elsewhere_is_told_once_and_ones_own_is_not() -> None:
    after, events = follow(failed("ab"), standing("b", seated=0))
    assert events == (PeerFailed(0, "a", "boom"),)
    assert follow(failed("ab"), after)[1] == ()
    assert follow(failed("ab"), standing("a", seated=0))[1] == ()


def test_a_failure_is_not_told_to_who_asks_for_the_next_generation_already() -> None:
    assert follow(failed("ab"), standing("b", seated=0, asked=1))[1] == ()


def test_who_was_left_out_and_let_in_again_before_it_heard_of_it_hears_that_its_generation_is_over() -> None:
    view = failed("ab", kind=FailureKind.ASKED, counted=False)
    (event,) = follow(view, standing("a", seated=0))[1]
    assert isinstance(event, MembershipChanged)
    assert follow(view, standing("a", seated=0, asked=1))[1] == ()


def test_an_uncounted_request_arrives_as_a_change_of_members() -> None:
    (event,) = follow(failed("ab", kind=FailureKind.ASKED, counted=False), standing("b", seated=0))[1]
    assert isinstance(event, MembershipChanged)
    (event,) = follow(failed("ab", kind=FailureKind.ASKED, counted=True), standing("b", seated=0))[1]
    assert isinstance(event, PeerFailed)


def test_who_is_given_up_by_the_others_stops_at_once() -> None:
    (event,) = follow(failed("ab", kind=FailureKind.LOST), standing("a", seated=0))[1]
    assert isinstance(event, LeaseLost)


@pytest.mark.parametrize(
    "ended",
    [
        failed("ab", kind=FailureKind.LOST),
        View(table=table("ab"), failures={0: failure(kind=FailureKind.ASKED, who="b", counted=False)}),
        running("bx", 1),
    ],
    ids=["given up", "a new one is wanted", "gone on without it"],
)
def test_who_waits_at_the_end_is_called_back_however_its_generation_ended(ended: View) -> None:
    waits = standing("a", seated=0).finishing(0)
    after, (event,) = follow(ended, waits)
    assert isinstance(event, PeerFailed)
    assert event.generation == 0
    assert follow(ended, after)[1] == ()


def test_what_was_told_while_finished_ranks_were_swept_is_told_again() -> None:
    swept, (event,) = follow(failed("ab", kind=FailureKind.LOST), standing("a", seated=0))
    assert isinstance(event, LeaseLost)
    (event,) = follow(failed("ab", kind=FailureKind.LOST), swept.finishing(0))[1]
    assert isinstance(event, PeerFailed)


def test_a_generation_that_began_without_this_node_stops_it() -> None:
    (event,) = follow(running("ax", 3), standing("b", seated=2))[1]
    assert isinstance(event, LeaseLost)
    assert event.generation == 2


def test_growth_is_told_once_and_only_to_members() -> None:
    view = replace(running("ab"), growth=GrowthRecord(0, 1, "one waits"))
    after, events = follow(view, standing("b", seated=0, limit=3))
    assert events == (MembershipChanged(0, 1, "one waits"),)
    assert follow(view, after)[1] == ()
    more = replace(view, growth=GrowthRecord(0, 2, "two wait"))
    assert isinstance(follow(more, after)[1][0], MembershipChanged)
    assert follow(replace(view, growth=GrowthRecord(9, 1, "other")), standing("b", seated=0))[1] == ()


def test_closing_goes_before_everything_and_is_told_once() -> None:
    view = replace(failed("ab"), closed=ClosedRecord(7, "budget used up", "a", "h", "c"))
    after, events = follow(view, standing("b", seated=0))
    assert events == (Closed(7, "budget used up"),)
    assert follow(view, after)[1] == ()
