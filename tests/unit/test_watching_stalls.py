"""Which silences are stalls and which are not. Every time is given; nothing waits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat.watching import procstate, stalls
from ftlaunch.heartbeat.watching import verdicts as v
from ftlaunch.heartbeat.watching.limits import CHECKPOINT, STEP
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.verdicts import Assessment
from support.beats import Node, Speaker

STEP_S = 0.1
FLOOR_S = 3.0


def trained(ranks: int = 2, steps: int = 60, **options: Any) -> tuple[Node, float]:
    """A node whose rhythm is known: the limit of ``step`` is the floor, 3 s."""
    node = Node(ranks, **{"floor_s": FLOOR_S, **options})
    now = node.train(1.0, steps, STEP_S)
    if not options.keys() & {"section_timeouts_s", "floor_s", "hang_timeout_s"}:
        assert node.limits.of(STEP).seconds == FLOOR_S
    return node, now


def kinds(assessment: Assessment) -> list[tuple[int, str]]:
    return [(stall.local_rank, stall.kind) for stall in assessment.stalls]


# -- silence --------------------------------------------------------------------------------------------------------


def test_silence_is_a_stall_at_the_learnt_limit_and_not_before() -> None:
    node, now = trained()
    at, assessment = node.run_until(now + 60, now)
    assert at == pytest.approx(now + FLOOR_S, abs=0.05)
    assert {kind for _, kind in kinds(assessment)} == {v.SILENT}
    stall = assessment.stalls[0]
    assert stall.silence_s == pytest.approx(FLOOR_S, abs=0.05)
    assert stall.limit_s == FLOOR_S
    assert "made no step for 3.0" in stall.reason and "learnt" in stall.reason


def test_the_rank_that_is_silent_longest_is_found_first() -> None:
    node, now = trained(3)
    node.train(now, 5, STEP_S, ranks=[0, 2])
    _, assessment = node.run_until(now + 60, now)
    assert kinds(assessment) == [(1, v.SILENT)]


def test_beating_ranks_are_never_judged_and_the_next_look_is_far_away() -> None:
    node, now = trained()
    assessment = node.assess(now)
    assert not assessment.stalls and not assessment.warnings
    assert assessment.next_deadline >= now + FLOOR_S / 2 - 0.05


def test_without_any_rhythm_the_hang_timeout_holds() -> None:
    node = Node()
    now = node.train(0.0, 3, 1.0)
    at, assessment = node.run_until(now + 1000, now)
    assert at == pytest.approx(now + 600.0)
    assert "default" in assessment.stalls[0].reason


def test_thirty_times_longer_first_steps_are_no_stall_in_any_generation() -> None:
    node, now = trained()
    for generation in (0, 1):
        node.begin(generation, 2, now)
        node.hear(*(speaker.hello(now + 1, "optimizer") for speaker in node.speakers))
        for gap in (60.0, 30 * STEP_S + FLOOR_S, 40.0, STEP_S):
            assert not node.run_until(now + gap, now)[1].stalls
            now = node.train(now + gap, 1, STEP_S)


def test_a_recompile_as_long_as_the_start_is_no_stall() -> None:
    node = Node(1, floor_s=FLOOR_S)
    node.hear(node.speakers[0].hello(1.0, "import"))
    now = node.train(41.0, 60, STEP_S)
    _, assessment = node.run_until(now + 40.0, now)
    assert not assessment.stalls
    assert node.run_until(now + 60.0, now)[1].stalls


def test_warnings_come_at_half_and_four_fifths_once_a_silence_for_all_ranks_together() -> None:
    node, now = trained(4, section_timeouts_s={STEP: 100.0})
    everybody = (0, 1, 2, 3)

    def warnings_of_a_silence(start: float, seconds: float) -> list[tuple[int, int, tuple[int, ...]]]:
        said, at = [], start
        while at < start + seconds:
            assessment = node.assess(at)
            said += [(round(at - start), warning.percent, warning.local_ranks) for warning in assessment.warnings]
            at = min(assessment.next_deadline, at + 7.0)
        return said

    assert warnings_of_a_silence(now, 55.0) == [(50, 50, everybody)]
    now = node.train(now + 55.0, 5, STEP_S)
    # Half is nothing new any more: the first warning comes when it is clearly longer than the last one.
    said = warnings_of_a_silence(now, 95.0)
    assert [percent for _, percent, _ in said] == [50, 80] and said[0][0] >= 66


def test_no_warning_for_a_silence_that_is_nothing_new() -> None:
    node = Node(1, section_timeouts_s={STEP: 100.0})
    now = node.train(0.0, 30, 70.0)
    _, assessment = node.run_until(now + 80.0, now)
    assert not assessment.warnings and not assessment.stalls


# -- sections -------------------------------------------------------------------------------------------------------


def test_checkpoint_many_times_longer_than_a_step_while_the_others_wait_without_a_section() -> None:
    node, now = trained(3)
    node.hear(node.speakers[0].open(CHECKPOINT, now + 0.05))
    _, assessment = node.run_until(now + 500, now)
    assert not assessment.stalls, "neither who saves nor who waits in the barrier"
    node.hear(node.speakers[0].close(now + 500))
    _, assessment = node.run_until(now + 502, now + 500)
    assert not assessment.stalls, "the others' silence counts from the end of the section"
    at, assessment = node.run_until(now + 600, now + 502)
    assert at == pytest.approx(now + 503, abs=0.1)


def test_a_section_has_its_own_limit_and_the_waiting_ranks_are_not_the_ones_named() -> None:
    node, now = trained(2, section_timeouts_s={CHECKPOINT: 10.0})
    node.hear(node.speakers[1].open(CHECKPOINT, now))
    at, assessment = node.run_until(now + 60, now)
    assert at == pytest.approx(now + 10.0)
    assert kinds(assessment) == [(1, v.SECTION)]
    assert "configured" in assessment.stalls[0].reason and "checkpoint" in assessment.stalls[0].reason


def test_the_same_silence_inside_and_outside_of_a_section() -> None:
    options: dict[str, Any] = {"hang_timeout_s": 2.0, "section_timeouts_s": {CHECKPOINT: 10.0}}
    for inside, expected in ((True, []), (False, [(0, v.SILENT)])):
        node, now = trained(1, **options)
        if inside:
            node.hear(node.speakers[0].open(CHECKPOINT, now))
        at, assessment = node.run_until(now + 5, now)
        assert kinds(assessment) == expected
        assert inside or at == pytest.approx(now + 2.0, abs=0.05)


def test_evaluation_without_steps_in_a_section() -> None:
    node, now = trained(2)
    node.hear(*(speaker.open("eval", now) for speaker in node.speakers))
    assert not node.run_until(now + 1000, now)[1].stalls


def test_outer_section_keeps_its_limit_whatever_happens_inside() -> None:
    node, now = trained(1, section_timeouts_s={"outer": 50.0, "inner": 1000.0})
    node.hear(node.speakers[0].open("outer", now))
    at = now
    while at < now + 49:
        at += 5.0
        node.hear(node.speakers[0].open("inner", at), node.speakers[0].close(at + 1))
    node.hear(node.speakers[0].open("inner", now + 51))
    at, assessment = node.run_until(now + 200, now + 52)
    assert at == now + 52 and assessment.stalls[0].section == "outer"


def test_steps_inside_a_section_reset_its_silence() -> None:
    node, now = trained(1, section_timeouts_s={"epoch": 10.0})
    node.hear(node.speakers[0].open("epoch", now))
    now = node.train(now, 300, STEP_S)
    assert not node.run_until(now + 9.5, now)[1].stalls
    assert node.run_until(now + 11, now)[1].stalls[0].section == "epoch"


def test_when_the_sections_are_not_known_the_most_lenient_limit_holds() -> None:
    node, now = trained(1)
    node.speakers[0].open("eval", now)
    node.hear(node.speakers[0].tick(now + 0.1))
    assert not node.run_until(now + 1700, now + 0.1)[1].stalls
    assert kinds(node.run_until(now + 1900, now + 0.1)[1]) == [(0, v.SILENT)]


def test_a_section_that_died_with_its_generation_judges_nobody() -> None:
    node, now = trained(1, section_timeouts_s={"short": 5.0})
    dead = node.speakers[0]
    node.hear(dead.open("short", now))
    node.begin(1, 1, now + 1)
    node.hear(dead.beat(now + 2, 1))
    now = node.train(now + 2, 60, STEP_S)
    assert not node.run_until(now + 2.9, now)[1].stalls
    assert node.run_until(now + 10, now)[1].stalls[0].section == STEP


def test_sections_on_another_node_excuse_those_who_wait_here() -> None:
    node, now = trained(2)
    at = now
    while at < now + 100:
        at += 2.0
        node.tracks.restart_timers(at)
        assert not node.run_until(at + 2.0, at)[1].stalls
    assert node.run_until(at + 10, at)[1].stalls


# -- learnt limits must not kill who works ------------------------------------------------------------------------


def evaluate(node: Node, now: float, seconds: float, rank: int, per_s: dict[str, int]) -> tuple[float, Assessment]:
    """Go silent for a while, the rank's counters growing as given."""
    end, at = now + seconds, now
    while True:
        elapsed = round(at - now, 6)
        node.set_state(rank, **{name: int(rate * elapsed) for name, rate in per_s.items()})
        assessment = node.assess(at)
        if assessment.stalls or assessment.next_deadline > end:
            return at, assessment
        at = assessment.next_deadline


@pytest.mark.parametrize(
    "per_s",
    [{"switches": 20}, {"faults": 300}, {"children_ticks": procstate.TICKS_PER_S // 2}],
    ids=["sleeps and wakes", "touches new memory", "children compute"],
)
def test_evaluation_without_a_section_is_left_alone_as_long_as_some_rank_works(per_s: dict[str, int]) -> None:
    node, now = trained(2)
    node.set_state(0, children_ticks=0)
    node.set_state(1, children_ticks=0)
    _, assessment = evaluate(node, now, 500.0, 1, per_s)
    assert not assessment.stalls
    now = node.train(now + 500.0, 1, STEP_S)
    assert node.limits.of(STEP).seconds == 600.0, "and from then on it is known"


def test_work_is_no_excuse_beyond_the_limit_that_held_before_anything_was_learnt() -> None:
    node, now = trained(2)
    at, assessment = evaluate(node, now, 5000.0, 1, {"switches": 50})
    assert at == pytest.approx(now + 600.0, abs=0.1) and assessment.stalls


def test_work_that_ends_ends_the_excuse() -> None:
    node, now = trained(2)
    at, assessment = evaluate(node, now, 30.0, 1, {"switches": 20})
    assert not assessment.stalls
    at, assessment = node.run_until(now + 100, at)
    assert assessment.stalls and at < now + 30.0 + 3 * FLOOR_S


def test_a_configured_limit_asks_nobody_whether_he_works() -> None:
    node, now = trained(2, section_timeouts_s={STEP: 4.0})
    at, assessment = evaluate(node, now, 100.0, 1, {"switches": 50})
    assert at == pytest.approx(now + 4.0) and assessment.stalls


def test_the_last_of_a_step_is_not_taken_for_work() -> None:
    """A burst at the beginning of the silence, as every step ends with one, then nothing."""
    node, now = trained(2, floor_s=30.0)
    node.assess(now)
    node.set_state(1, switches=500, faults=5000)
    at, _ = node.run_until(now + 100, now)
    assert at == pytest.approx(now + 30.0, abs=0.05)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"cpu_ticks": 10_000}, False),  # spinning
        ({"switches": 2}, False),  # looks in every five seconds, as a starved data loader does
        ({"switches": 10}, True),
        ({"faults": 199}, False),
        ({"faults": 200}, True),
        ({"children_ticks": 10 * procstate.TICKS_PER_S // 5}, True),
        ({"children_ticks": None}, False),
    ],
)
def test_what_counts_as_work_in_ten_seconds(changes: dict[str, Any], expected: bool) -> None:
    before = ProcState(1, "R", children_ticks=0)
    after = before._replace(**changes)
    assert stalls.works(before, after, 10.0) is expected
    assert not stalls.works(before, after, 0.0)


def test_a_learnt_limit_never_ends_two_generations_at_the_same_place() -> None:
    node, now = trained(2, steps=80)
    at, assessment = node.run_until(now + 60, now)
    node.convict(assessment.stalls[0])
    node.begin(1, 2, at)
    now = node.train(at, 80, STEP_S)
    assert not node.run_until(now + 300, now)[1].stalls, "an evaluation without a section may end now"
    node.begin(2, 2, now)
    now = node.train(now, 100, STEP_S)
    at, _ = node.run_until(now + 60, now)
    assert at == pytest.approx(now + FLOOR_S, abs=0.05), "past that place the learnt limit holds again"


# -- the agent was away ---------------------------------------------------------------------------------------------


def test_a_pause_of_the_agent_is_left_out_of_every_silence() -> None:
    node, now = trained(2)
    node.tracks.paused(now + 60.0, 59.0)
    at, _ = node.run_until(now + 100.0, now + 60.0)
    assert at == pytest.approx(now + 60.0 + FLOOR_S - 1.0, abs=0.1)


# -- before the first step ------------------------------------------------------------------------------------------


def start(phase: str | None, **options: Any) -> tuple[Node, float]:
    node = Node(2, **options)
    if phase is not None:
        for earlier in ("start", "script"):
            node.hear(*(speaker.hello(1.0, earlier) for speaker in node.speakers))
        node.hear(*(speaker.hello(2.0, phase) for speaker in node.speakers))
    return node, 2.0


@pytest.mark.parametrize("phase", [None, "start", "script", "import"])
def test_a_program_that_shows_no_sign_of_training_is_not_watched_and_that_is_said_once(phase: str | None) -> None:
    node, now = start(phase)
    notices = []
    for _ in range(40):
        assessment = node.assess(now)
        assert not assessment.stalls
        notices += assessment.notices
        now += 600.0
    assert [(notice.kind, notice.local_ranks) for notice in notices] == [("unwatched", (0, 1))]


@pytest.mark.parametrize(
    ("phase", "options", "limit_s"),
    [
        ("optimizer", {}, 1800.0),
        ("init", {}, 1800.0),
        ("import", {"init_timeout_s": 20.0}, 20.0),
        ("import", {"section_timeouts_s": {"init": 30.0}}, 30.0),
    ],
)
def test_a_program_that_means_to_train_is_watched_from_its_start(
    phase: str, options: dict[str, Any], limit_s: float
) -> None:
    node, now = start(phase, **options)
    at, assessment = node.run_until(now + 3000, now)
    assert at == pytest.approx(now + limit_s)
    assert kinds(assessment) == [(0, v.INIT_STALL), (1, v.INIT_STALL)]


@pytest.mark.parametrize("phase", [None, "start", "script"])
def test_even_with_an_init_timeout_a_program_that_never_speaks_is_not_watched(phase: str | None) -> None:
    node, now = start(phase, init_timeout_s=5.0)
    assert not node.run_until(now + 10_000, now)[1].stalls


def test_a_rank_that_has_trained_before_is_watched_from_the_spawn_on() -> None:
    node, now = trained(2)
    node.begin(1, 2, now)
    at, assessment = node.run_until(now + 3000, now)
    assert at == pytest.approx(now + 1800.0) and len(assessment.stalls) == 2


def test_process_group_init_that_never_ends() -> None:
    node, now = start("import", init_timeout_s=20.0)
    node.hear(node.speakers[1].open("init", now + 1))
    at, assessment = node.run_until(now + 100, now)
    assert kinds(assessment) == [(0, v.INIT_STALL)] and at == pytest.approx(now + 20)
    at, assessment = node.run_until(now + 100, now + 20.5)
    assert (1, v.INIT_STALL) in kinds(node.assess(now + 21.1))


def test_each_sign_of_the_start_gives_the_full_time_again() -> None:
    node, now = start("optimizer", init_timeout_s=20.0)
    for _ in range(10):
        for speaker in node.speakers:
            node.hear(speaker.open(CHECKPOINT, now), speaker.close(now + 15))
        assert not node.run_until(now + 30, now + 15)[1].stalls
        now += 30


# -- what the kernel says -------------------------------------------------------------------------------------------


def test_a_stopped_rank_is_found_in_under_three_seconds_in_any_phase() -> None:
    for node, now in (trained(2), start(None)):
        node.set_state(1, state="T")
        at, assessment = node.run_until(now + 60, now)
        assert at - now < 1.5
        assert kinds(assessment) == [(1, v.STOPPED)]
        assert "state T" in assessment.stalls[0].reason


def test_a_rank_that_goes_on_at_once_was_not_stopped() -> None:
    node, now = trained(1)
    node.set_state(0, state="T")
    assert node.assess(now).next_deadline == pytest.approx(now + 1.0)
    node.set_state(0, state="S")
    assert not node.assess(now + 0.5).stalls
    node.set_state(0, state="T")
    assert not node.assess(now + 1.2).stalls


def test_ignore_stopped_holds_every_silence() -> None:
    node, now = trained(2, ignore_stopped=True)
    node.set_state(1, state="T")
    notices = []
    at = now
    while at < now + 300:
        assessment = node.assess(at)
        assert not assessment.stalls
        notices += assessment.notices
        at = assessment.next_deadline
    assert [notice.kind for notice in notices] == ["stopped"]


@pytest.mark.parametrize("changes", [{"state": "t"}, {"tracer_pid": 77}, {"state": "t", "tracer_pid": 77}])
def test_nobody_is_stalled_while_some_rank_is_traced_nor_right_after(changes: dict[str, Any]) -> None:
    node, now = trained(3)
    before = node.states[1]
    node.set_state(1, **changes)
    at, notices = now, []
    while at < now + 500:
        assessment = node.assess(at)
        assert not assessment.stalls
        notices += assessment.notices
        at = assessment.next_deadline
    assert [(notice.kind, notice.local_ranks) for notice in notices] == [("traced", (1,))]
    node.states[1] = before
    assert not node.run_until(at + FLOOR_S - 0.1, at)[1].stalls, "it gets the whole limit after the debugger left"
    assert node.run_until(at + 60, at)[1].stalls


def test_another_rank_that_is_stopped_is_a_stall_also_while_one_is_traced() -> None:
    node, now = trained(2)
    node.set_state(0, tracer_pid=77)
    node.set_state(1, state="T")
    assert kinds(node.run_until(now + 60, now)[1]) == [(1, v.STOPPED)]


def test_uninterruptible_sleep_is_a_stall_when_it_lasts_in_one_place() -> None:
    node, now = trained(1, hang_timeout_s=1000.0, floor_s=1000.0, dstate_timeout_s=20.0)
    node.set_state(0, state="D", switches=7, waits_in="rpc_wait_bit_killable")
    at, assessment = node.run_until(now + 500, now)
    assert 20.0 <= at - now <= 31.0
    assert kinds(assessment) == [(0, v.DSTATE)]
    assert "rpc_wait_bit_killable" in assessment.stalls[0].reason


@pytest.mark.parametrize("what", ["moves on", "in a checkpoint", "no limit"])
def test_uninterruptible_sleep_that_is_no_stall(what: str) -> None:
    dstate = 0.0 if what == "no limit" else 20.0
    node, now = trained(1, hang_timeout_s=1000.0, floor_s=1000.0, dstate_timeout_s=dstate)
    if what == "in a checkpoint":
        node.hear(node.speakers[0].open(CHECKPOINT, now))
    at = now
    while at < now + 400:
        node.set_state(0, state="D", switches=round(at) if what == "moves on" else 7)
        assessment = node.assess(at)
        assert not assessment.stalls
        at = assessment.next_deadline


def test_a_main_thread_that_ended_while_others_live_on() -> None:
    node, now = start(None)
    node.set_state(0, state="Z", threads=4, living_threads=3)
    at, assessment = node.run_until(now + 60, now)
    assert kinds(assessment) == [(0, v.ZOMBIE_MAIN)] and at - now == pytest.approx(2.0)


def test_a_process_that_is_dying_gets_time_to_give_back_its_memory() -> None:
    node, now = trained(1, hang_timeout_s=1000.0, floor_s=1000.0)
    node.set_state(0, state="Z", threads=2, living_threads=0)
    assert not node.run_until(now + 25, now)[1].stalls
    node.set_state(0, threads=1)
    assert not node.run_until(now + 100, now + 25)[1].stalls


# -- leaving --------------------------------------------------------------------------------------------------------


def test_exit_barrier_ends_a_rank_that_does_nothing_after_another_has_left() -> None:
    node, now = trained(3, exit_barrier_timeout_s=60.0)
    node.tracks.exited(0, 0, now)
    at, assessment = node.run_until(now + 500, now)
    assert at == pytest.approx(now + 60.0, abs=0.1), "not at the limit of a step: no more steps are expected"
    assert kinds(assessment) == [(1, v.EXIT_BARRIER)]
    assert "rank 0 ended with 0" in assessment.stalls[0].reason


@pytest.mark.parametrize("sign", ["steps", "sections", "work"])
def test_exit_barrier_is_longer_while_the_others_show_progress(sign: str) -> None:
    node, now = trained(2, exit_barrier_timeout_s=60.0)
    node.tracks.exited(0, 0, now)
    at = now
    while at < now + 400:
        if sign == "steps":
            node.train(at, 1, 0.0, ranks=[1])
        elif sign == "sections":
            node.hear(node.speakers[1].open("upload", at), node.speakers[1].close(at))
        else:
            node.set_state(1, switches=round(10 * at))
        assessment = node.assess(at)
        assert not assessment.stalls
        at = min(assessment.next_deadline, at + 40.0)
    node.set_state(1, switches=node.states[1].switches)
    assert kinds(node.run_until(at + 200, at)[1]) == [(1, v.EXIT_BARRIER)]


def test_exit_barrier_leaves_programs_that_never_speak_alone_while_they_work() -> None:
    node, now = start(None, exit_barrier_timeout_s=60.0)
    node.tracks.exited(0, 0, now)
    _, assessment = evaluate(node, now, 2000.0, 1, {"switches": 5})
    assert not assessment.stalls


def test_sections_are_still_judged_after_another_rank_has_left() -> None:
    node, now = trained(2, section_timeouts_s={CHECKPOINT: 10.0})
    node.tracks.exited(0, 0, now)
    node.hear(node.speakers[1].open(CHECKPOINT, now))
    at, assessment = node.run_until(now + 100, now)
    assert kinds(assessment) == [(1, v.SECTION)] and at == pytest.approx(now + 10.0)


@pytest.mark.parametrize(
    ("section", "options", "limit_s"),
    [
        ("upload", {"section_timeouts_s": {"upload": 60.0}}, 60.0),
        ("upload", {"hang_timeout_s": 90.0}, 90.0),
        (CHECKPOINT, {}, 1800.0),
        ("upload", {"section_timeouts_s": {"upload": 0.0}}, math.inf),
    ],
)
def test_exit_barrier_waits_for_the_limit_of_an_open_section(
    section: str, options: dict[str, Any], limit_s: float
) -> None:
    node, now = trained(3, exit_barrier_timeout_s=5.0, **options)
    node.tracks.exited(0, 0, now)
    node.hear(node.speakers[2].open(section, now))
    at, assessment = node.run_until(now + 5000, now)
    if math.isinf(limit_s):
        assert not assessment.stalls
        return
    assert at == pytest.approx(now + limit_s, abs=0.1), "also for the other, which may wait for it"
    assert kinds(assessment)[0] == (2, v.SECTION)


def test_exit_barrier_holds_again_once_the_section_is_closed() -> None:
    node, now = trained(2, exit_barrier_timeout_s=5.0, section_timeouts_s={"upload": 60.0})
    node.tracks.exited(0, 0, now)
    node.hear(node.speakers[1].open("upload", now))
    assert not node.run_until(now + 50, now)[1].stalls
    node.hear(node.speakers[1].close(now + 50))
    at, assessment = node.run_until(now + 500, now + 50)
    assert kinds(assessment) == [(1, v.EXIT_BARRIER)] and at == pytest.approx(now + 55.0, abs=0.1)


def test_exit_barrier_waits_for_the_first_limit_of_sections_within_each_other() -> None:
    node, now = trained(2, exit_barrier_timeout_s=60.0, section_timeouts_s={"inner": 1000.0})
    node.tracks.exited(0, 0, now)
    node.hear(node.speakers[1].open("upload", now), node.speakers[1].open("inner", now + 1.0))
    at, assessment = node.run_until(now + 5000, now + 1.0)
    assert kinds(assessment)[0] == (1, v.SECTION) and at == pytest.approx(now + 600.0)


@pytest.mark.parametrize(("state", "words"), [("S", "does nothing"), ("R", "shows no progress")])
def test_exit_barrier_says_of_a_running_rank_only_that_it_shows_no_progress(state: str, words: str) -> None:
    node, now = trained(2, exit_barrier_timeout_s=5.0)
    node.tracks.exited(0, 0, now)
    node.set_state(1, state=state)
    _, assessment = node.run_until(now + 500, now)
    assert kinds(assessment) == [(1, v.EXIT_BARRIER)]
    assert f"has not ended, and {words}, 5.00 s after rank 0 ended with 0" in assessment.stalls[0].reason


def test_a_rank_that_failed_or_the_last_one_to_leave_starts_no_barrier() -> None:
    node, now = trained(2, exit_barrier_timeout_s=1.0, floor_s=100.0, hang_timeout_s=100.0)
    node.tracks.exited(0, 1, now)
    assert not node.run_until(now + 50, now)[1].stalls
    node.tracks.exited(1, 0, now + 50)
    assert node.assess(now + 50) == Assessment()


def test_a_shell_whose_training_has_ended_is_no_longer_judged_by_it() -> None:
    node, now = trained(1)
    child = Speaker(0, 4000)
    for _ in range(60):
        now += STEP_S
        node.hear(child.tick(now))
    assert node.tracks.ranks[0].voice == 4000
    del node.states[0]
    node.assess(now)
    node.states[0] = ProcState(1000, "S")
    assert not node.run_until(now + 10_000, now)[1].stalls


# -- in general -----------------------------------------------------------------------------------------------------

ACTIONS = st.sampled_from(
    ["tick 0", "tick 1", "open 0", "open 1", "close 0", "close 1", "exit 0", "stop", "cont", "trace", "judge", "pause"]
)


def apply(node: Node, action: str, now: float) -> None:
    name, _, rank = action.partition(" ")
    index = int(rank or 0)
    speaker = node.speakers[index]
    if name == "tick":
        node.hear(speaker.tick(now))
    elif name == "open":
        node.hear(speaker.open("s" if len(speaker.sections) % 2 else CHECKPOINT, now))
    elif name == "close":
        node.hear(speaker.close(now))
    elif name == "exit":
        node.tracks.exited(index, 0, now)
    elif name == "pause":
        node.tracks.paused(now, 2.0)
    elif name == "judge":
        node.assess(now)
    else:
        node.set_state(index, state="T" if name == "stop" else "S", tracer_pid=9 if name == "trace" else 0)


@given(
    st.lists(st.tuples(ACTIONS, st.floats(0.0, 20.0)), max_size=40),
    st.floats(0.1, 50.0),
)
def test_a_verdict_stands_as_long_as_nothing_new_is_heard(actions: list[tuple[str, float]], later: float) -> None:
    node = Node(2, floor_s=1.0, hang_timeout_s=30.0, init_timeout_s=60.0, exit_barrier_timeout_s=40.0)
    now = 0.0
    for action, pause in actions:
        now += pause
        apply(node, action, now)
    at, assessment = node.run_until(now + 500, now)
    assert assessment.next_deadline > at
    for stall in assessment.stalls:
        assert stall.silence_s >= 0 and stall.limit_s > 0 and math.isfinite(stall.silence_s)
        assert stall.silence_s >= stall.limit_s - 1e-6
        assert node.tracks.ranks[stall.local_rank].alive
    if any(track.beats for track in node.tracks.alive) and not node.tracks.held:
        assert assessment.stalls, "a rank that has made a step and then nothing more is found by the largest limit"
    again = node.assess(at + later)
    # Distrust of what was learnt may lengthen a limit for the next generation, never below what has passed here.
    stopped = {rank for rank, kind in kinds(assessment) if kind == v.STOPPED}
    assert stopped <= {rank for rank, _ in kinds(again)}


@given(st.floats(0.0, 700.0), st.floats(0.0, 700.0))
def test_more_silence_is_never_less_of_a_stall(one: float, other: float) -> None:
    def is_stalled(silence: float) -> bool:
        node = Node(1, section_timeouts_s={STEP: 50.0})
        now = node.train(0.0, 30, STEP_S)
        return bool(node.assess(now + silence).stalls)

    shorter, longer = sorted((one, other))
    assert is_stalled(shorter) <= is_stalled(longer)


def test_a_thousand_ranks_are_judged_without_a_loop_over_pairs_where_it_matters() -> None:
    node = Node(1000)
    now = node.train(0.0, 2, 1.0)
    assert not node.assess(now + 1).stalls
    assert len(node.assess(now + 301).warnings[0].local_ranks) == 1000
