"""What the agent makes of the messages of a rank."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat.watching.limits import CHECKPOINT, STEP, WARM_UP, Source
from ftlaunch.heartbeat.watching.listener import Heard
from ftlaunch.heartbeat.watching.stalls import dues
from ftlaunch.heartbeat.watching.tracks import Phase
from ftlaunch.heartbeat.wire import Kind, Message
from support.beats import FIRST_PID, Node, Speaker


def names(node: Node, rank: int = 0) -> list[str] | None:
    sections = node.tracks.ranks[rank].sections
    return None if sections is None else [section.name for section in sections]


def test_phases_only_go_forward() -> None:
    node = Node()
    worker, track = node.speakers[0], node.tracks.ranks[0]
    assert track.phase is Phase.SPAWNED
    for phase, expected in [
        ("start", Phase.STARTED),
        ("script", Phase.SCRIPT),
        ("something later versions say", Phase.SCRIPT),
        ("import", Phase.IMPORTED),
        ("start", Phase.IMPORTED),
        ("optimizer", Phase.TRAINING),
    ]:
        assert node.hear(worker.hello(1.0, phase))
        assert track.phase is expected
    assert node.hear(worker.tick(2.0)), "a first step moves deadlines"
    assert track.phase is Phase.STEPPING
    assert not node.hear(worker.tick(3.0)), "any other step does not"


def test_progress_tells_steps_of_the_script_ticks_and_checkpoints() -> None:
    node = Node(2)
    one, other = node.speakers
    node.hear(one.tick(1.0), one.tick(2.0), other.beat(1.0, 41, loss=0.5), other.beat(2.0, 42))
    node.hear(other.say(Kind.CHECKPOINT, 3.0, payload={"path": "x", "step": 42}))
    node.hear(one.say(Kind.CHECKPOINT, 3.0, payload={"path": "x", "step": None}))
    progress = node.tracks.progress()
    assert progress == (True, 42, 2, 2, 42)
    assert node.tracks.ranks[1].info == {"loss": 0.5}


def test_sections_nest_and_vanish_with_their_generation() -> None:
    node = Node()
    worker = node.speakers[0]
    node.hear(worker.open("epoch", 1.0), worker.open(CHECKPOINT, 2.0))
    assert names(node) == ["epoch", CHECKPOINT]
    node.hear(worker.close(3.0))
    assert names(node) == ["epoch"]
    late = worker.open(CHECKPOINT, 4.0)
    node.begin(1, 1, 10.0)
    assert names(node) == []
    assert not node.hear(late)
    assert names(node) == [], "a message of the dead generation is nobody's"


def test_a_lost_section_message_makes_the_sections_unknown_until_they_are_told_again() -> None:
    node = Node()
    worker = node.speakers[0]
    node.hear(worker.tick(1.0))
    worker.open(CHECKPOINT, 2.0)
    assert node.hear(worker.tick(3.0))
    assert names(node) is None
    assert not node.hear(worker.tick(4.0))
    # What the worker does after a failed send: it adds its sections to the next beat.
    assert node.hear(worker.say(Kind.TICK, 5.0, 5, {"sections": [CHECKPOINT]}))
    assert names(node) == [CHECKPOINT]
    assert node.tracks.ranks[0].sections[0].entered_at == 5.0  # type: ignore[index]
    node.hear(worker.close(6.0))
    assert names(node) == []


def test_a_section_message_overtaken_by_a_later_one_changes_nothing() -> None:
    node = Node()
    worker = node.speakers[0]
    opened, closed = worker.open("a", 1.0), worker.close(2.0)
    node.hear(closed, opened)
    assert names(node) == []


def test_section_serials_wrap_around() -> None:
    node = Node()
    worker = node.speakers[0]
    # Half of the numbers are newer than ours, so it takes two leaps to the last one.
    for at, serial in ((0.1, (1 << 31) - 1), (0.2, (1 << 32) - 2), (1.0, (1 << 32) - 1)):
        worker.sections, worker.serial = [], serial - 1
        node.hear(worker.open("a", at))
    worker.serial = -1
    node.hear(worker.open("b", 2.0))
    assert names(node) == ["a", "b"]
    assert node.tracks.ranks[0].sections[0].entered_at == 0.2  # type: ignore[index]


def test_beats_that_overtake_each_other_do_not_go_back() -> None:
    node = Node()
    worker, track = node.speakers[0], node.tracks.ranks[0]
    node.hear(worker.beat(1.0, 1))
    older, newer = worker.beat(2.0, 2), worker.beat(3.0, 3)
    node.hear(newer, replace_received(older, 3.0))
    assert (track.step, track.beats) == (3, 2)


def replace_received(heard: Heard, at: float) -> Heard:
    return heard._replace(received_at=at)


def test_a_process_below_the_rank_may_speak_for_it_with_a_sequence_of_its_own() -> None:
    node = Node()
    shell, child, later = node.speakers[0], Speaker(0, 4000), Speaker(0, 5000)
    node.hear(shell.hello(0.1, "start"), shell.hello(0.2, "script"))
    node.hear(child.hello(1.0), child.open("x", 1.5), child.beat(2.0, 7))
    track = node.tracks.ranks[0]
    assert (track.voice, track.step, names(node)) == (4000, 7, ["x"])
    node.hear(later.beat(3.0, 8))
    assert (track.voice, track.step, names(node)) == (5000, 8, [])
    assert track.beats == 1, "its first steps are first steps again"


def test_gaps_are_learnt_by_the_senders_clock() -> None:
    node = Node()
    now = node.train(0.0, 30, 0.5)
    # The agent was away: three beats lay in the queue and are received at once, long after.
    for _ in range(3):
        now += 0.5
        node.hear(replace_received(node.speakers[0].tick(now), 100.0))
    assert node.limits.longest_s(STEP) == pytest.approx(0.5)


def test_gaps_around_lost_messages_teach_nothing() -> None:
    node = Node()
    now = node.train(0.0, 30, 0.5)
    node.speakers[0].tick(now + 1.0)
    node.hear(node.speakers[0].tick(now + 50.0))
    assert node.limits.longest_s(STEP) == pytest.approx(0.5)
    node.hear(node.speakers[0].tick(now + 51.0))
    assert node.limits.longest_s(STEP) == pytest.approx(1.0)


def test_gaps_spent_waiting_for_another_ranks_section_teach_nothing() -> None:
    node = Node(2)
    now = node.train(0.0, 30, 0.5)
    saver, waiter = node.speakers
    node.hear(saver.open(CHECKPOINT, now + 0.1))
    node.hear(saver.close(now + 40.0))
    node.hear(saver.tick(now + 40.5), waiter.tick(now + 40.5))
    assert node.limits.longest_s(STEP) == pytest.approx(0.5)
    assert node.limits.longest_s(CHECKPOINT) == pytest.approx(39.9)


def test_first_gaps_of_each_rank_are_set_apart() -> None:
    node = Node()
    node.hear(node.speakers[0].hello(1.0, "import"))
    node.hear(node.speakers[0].tick(61.0))
    now = node.train(61.0, WARM_UP, 20.0)
    node.train(now, 30, 0.1)
    assert node.limits.start_s == pytest.approx(60.0)
    assert node.limits.of(STEP).seconds == pytest.approx(60.0)


def test_steps_inside_a_section_teach_its_limit() -> None:
    node = Node()
    node.hear(node.speakers[0].open("train", 1.0))
    node.train(1.0, 40, 0.5)
    assert tuple(node.limits.of("train")) == (30.0, Source.LEARNT)
    assert node.limits.of(STEP).source is Source.DEFAULT


def test_after_timers_were_restarted_the_present_gap_teaches_nothing() -> None:
    node = Node()
    now = node.train(0.0, 30, 0.5)
    node.tracks.restart_timers(now + 100.0)
    node.train(now + 200.0, 1, 0.5)
    assert node.limits.longest_s(STEP) == pytest.approx(0.5)
    node.train(now + 201.5, 1, 0.5)
    assert node.limits.longest_s(STEP) == pytest.approx(1.5)


def test_a_message_that_waited_for_the_agent_leaves_its_absence_out_of_every_silence() -> None:
    node = Node(2)
    now = node.train(0.0, 30, 0.5)
    before = [track.beat_at for track in node.tracks.ranks]
    # Rank 0 got a beat into the queue 0.5 s after the agent was stopped; rank 1 found it full.
    node.hear(replace_received(node.speakers[0].tick(now + 0.5), now + 60.0))
    assert node.tracks.ranks[1].beat_at == pytest.approx(before[1] + 59.5, abs=0.1)
    # A second message from the same absence does not count it twice.
    node.hear(replace_received(node.speakers[1].tick(now + 0.5), now + 60.0))
    node.tracks.paused(now + 60.0, 59.0)
    assert max(track.beat_at for track in node.tracks.ranks) <= now + 60.0


def test_a_worker_whose_clock_has_an_offset_is_heard_like_any_other() -> None:
    node = Node()
    for number in range(1, 40):
        heard = node.speakers[0].tick(1e6 + number)
        node.hear(replace_received(heard, float(number)))
    track = node.tracks.ranks[0]
    assert track.beat_at == 39.0
    assert node.limits.longest_s(STEP) == pytest.approx(1.0)
    # It jumps once, as when a process is restored, and goes on.
    for number in range(40, 45):
        node.hear(replace_received(node.speakers[0].tick(5.0 + number - 40), float(number)))
    assert track.beat_at == 44.0
    assert node.tracks.fresh_at < 44.0


def test_exit_ends_its_sections_and_the_first_good_one_is_remembered() -> None:
    node = Node(3)
    node.hear(node.speakers[0].open("x", 1.0))
    node.tracks.exited(0, -9, 2.0)
    assert node.tracks.left_at is None and not node.tracks.others_in_section(node.tracks.ranks[1])
    node.tracks.exited(1, 0, 3.0)
    node.tracks.exited(2, 0, 4.0)
    assert node.tracks.left_at == 3.0 and node.tracks.alive == []


def test_messages_of_other_generations_or_ranks_are_ignored() -> None:
    node = Node()
    for stranger in (Speaker(0, generation=1), Speaker(5)):
        assert not node.hear(stranger.beat(1.0, 3))
    assert node.tracks.progress().step is None


SECTION_NAMES = st.sampled_from(["a", "b", CHECKPOINT, "init", "eval"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
PAYLOADS = st.dictionaries(st.sampled_from(["sections", "info", "phase", "step", "pid", "path"]), JSON, max_size=4)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    generation=st.integers(0, 1),
    local_rank=st.integers(0, 3),
    sequence=st.integers(0, 20) | st.integers(0, 2**64 - 1),
    section_serial=st.integers(0, 4) | st.integers(0, 2**32 - 1),
    step=st.none() | st.integers(0, 2**63 - 1),
    sent_ns=st.integers(0, 10**11) | st.integers(0, 2**64 - 1),
    payload=PAYLOADS | st.fixed_dictionaries({"sections": st.lists(SECTION_NAMES, max_size=3)}),
)


@given(st.lists(st.tuples(MESSAGES, st.integers(FIRST_PID, FIRST_PID + 2), st.floats(0, 50))))
def test_no_sequence_of_messages_raises_or_makes_an_impossible_limit(
    arrivals: list[tuple[Message, int, float]],
) -> None:
    node = Node(3)
    now = 0.0
    for message, pid, later in arrivals:
        now += later
        node.tracks.hear(Heard(message, pid, now), node.limits)
        for track in node.tracks.ranks:
            assert 0.0 <= track.progress_at <= now
            assert track.beats >= 0 and len(track.section) <= 64
            for due in dues(track, node.tracks, node.limits):
                assert due.since <= now
                assert due.limit.seconds > 0
        assert math.isfinite(node.limits.start_s) and node.limits.start_s >= 0
    node.assess(now)


@given(
    st.lists(st.sampled_from(["open a", "open b", "close", "beat", "lose", "reorder"]), max_size=60),
)
def test_the_sections_known_are_those_of_the_worker_or_unknown(script: list[str]) -> None:
    """Whatever is lost: never wrong about them once a message with the present serial has come."""
    node = Node()
    worker = node.speakers[0]
    held: list[Heard] = []
    lossy = False
    for index, what in enumerate(script):
        at = 1.0 + index
        heard: Any = None
        if what.startswith("open"):
            heard = worker.open(what[-1], at)
        elif what == "close":
            heard = worker.close(at)
        elif what == "beat":
            heard = worker.beat(at, index)
        elif what == "lose":
            lossy = True
        else:
            node.hear(*(replace_received(old, at) for old in held))
            held.clear()
        if heard is None:
            continue
        if lossy:
            held.append(heard)
            lossy = False
        else:
            node.hear(heard)
            assert names(node) in (worker.sections, None)
            if heard.message.kind is Kind.SECTION:
                assert names(node) == worker.sections


def test_wire_messages_with_an_unknown_section_list_are_survived() -> None:
    node = Node()
    worker = node.speakers[0]
    heard = worker.open("a", 1.0)
    for bad in ("a", [["a"]] * 40, {"a": 1}):
        node.hear(heard._replace(message=replace(heard.message, payload={"sections": bad})))
        assert names(node) is None
    node.hear(heard)
    assert names(node) == ["a"]
