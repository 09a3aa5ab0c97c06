"""From event logs to goodput and losses: tables over hand-written logs, and what holds for any log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlaunch.launcher.history.goodput import Account, Use, account
from ftlaunch.launcher.history.ledger import Ledger
from ftlaunch.launcher.history.model import History
from ftlaunch.launcher.history.read import read_history
from support.event_logs import Event, EventLogWriter, Fault, write_run


def told_by(events: list[Event]) -> tuple[History, Account]:
    ledger = Ledger()
    for event in events:
        ledger.feed(event)
    history = ledger.history()
    return history, account(history)


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-6)


def test_a_job_without_a_fault() -> None:
    log = EventLogWriter(step_s=0.1)
    history, told = told_by(log.run([], total=100, setup_s=2.0))
    assert history.wall_s == near(0.022 + 2.0 + 10.0 + 0.5)
    assert told.by_use == {
        Use.STEPS: near(10.0),
        Use.AGREED: near(0.002),
        Use.STARTED: near(0.02),
        Use.RESUMED: near(2.0),
        Use.END: near(0.5),
    }
    assert (told.steps_done, told.steps_repeated, told.losses) == (100, 0, ())
    assert told.training == told.infrastructure == near(10.0 / 12.522)


def test_a_fault_costs_its_recovery_the_repeated_steps_and_the_step_that_was_broken_off() -> None:
    fault = Fault(
        60, silence_s=0.04, detected_s=0.001, stopped_s=0.5, reclaimed_s=0.2, started_s=0.1, setup_s=1.0, kept=50
    )
    _, told = told_by(EventLogWriter(step_s=0.1).run([fault], total=100))
    assert (told.steps_done, told.steps_repeated) == (100, 10)
    (loss,) = told.losses
    assert (loss.cause, loss.repeated_steps) == ("SIGKILL", 10)
    assert loss.phases_s == {
        Use.DETECTED: near(0.001),
        Use.AGREED: near(0.002),
        Use.STOPPED: near(0.5),
        Use.RECLAIMED: near(0.2),
        Use.STARTED: near(0.1),
        Use.RESUMED: near(1.1),
    }
    assert loss.recovery_s == near(0.001 + 0.002 + 0.5 + 0.2 + 0.1 + 1.0 + 0.1)
    # The first step of the next generation is none of it.
    assert loss.lost_s == near(0.04 + 0.001 + 0.002 + 0.5 + 0.2 + 0.1 + 1.0 + 10 * 0.1)
    assert told.by_use[Use.STEPS] == near(10.0) and told.by_use[Use.REPEATED] == near(1.0)


def test_a_step_counts_once_however_often_it_is_run() -> None:
    faults = [Fault(50, kept=0), Fault(30, kept=0), Fault(60, kept=0)]
    _, told = told_by(EventLogWriter().run(faults, total=80))
    assert (told.steps_done, told.steps_repeated) == (80, 30 + 50 + 60)
    assert [loss.repeated_steps for loss in told.losses] == [30, 50, 60]


def test_silence_before_a_stall_is_lost_but_not_part_of_its_recovery() -> None:
    fault = Fault(20, kind="stall", reason="no progress", silence_s=30.0)
    _, told = told_by(EventLogWriter().run([fault], total=40))
    (loss,) = told.losses
    assert loss.cause == "stall"
    assert loss.by_use[Use.UNFINISHED] == near(30.0)
    assert loss.recovery_s is not None and loss.recovery_s < 1.0 and loss.lost_s > 30.0


def test_a_generation_that_never_beats_is_the_loss_of_what_ended_it() -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    log.at += 7.0
    log.fail(0, Fault(0))
    log.launch(1, 0.02)
    log.train(1, 1, 10, 1.0)
    log.finish(1)
    _, told = told_by(log.events)
    (loss,) = told.losses
    assert loss.by_use[Use.RESUMED] == near(7.0 + 1.0)


def test_optimizer_steps_go_on_from_the_last_checkpoint_that_was_heard_of() -> None:
    log = EventLogWriter(explicit=False, step_s=0.1)
    log.write("job_started")
    log.start(0)
    log.train(0, 1, 75, 0.5)
    # While the 50th of 75 steps ran, 2.5 s ago.
    log.events.append({**log.events[-1], "event": "checkpoint_saved", "monotonic": log.at - 2.5, "step": None})
    log.events[-1], log.events[-2] = log.events[-2], log.events[-1]
    log.fail(0, Fault(75))
    log.launch(1, 0.02)
    log.train(1, 1, 50, 0.5)
    log.finish(1)
    _, told = told_by(log.events)
    assert (told.steps_done, told.steps_repeated) == (100, 25)


def test_optimizer_steps_without_a_checkpoint_begin_anew() -> None:
    _, told = told_by(EventLogWriter(explicit=False).run([Fault(40), Fault(10)], total=150))
    # 40 and 10 lost; the writer lets the last generation do what is left of 150.
    assert (told.steps_done, told.steps_repeated) == (100, 10 + 40)


def test_a_published_resume_step_beats_the_estimate_unless_it_counts_something_else() -> None:
    def job(resume_step: int) -> Account:
        log = EventLogWriter(explicit=False)
        log.write("job_started")
        log.start(0)
        log.train(0, 1, 60, 0.1)
        log.events.append({**log.events[-1], "event": "checkpoint_saved", "monotonic": log.at})
        log.fail(0, Fault(60))
        log.events[-3 if log.events[-1]["event"] == "gpu_reclaimed" else -1]["resume_step"] = resume_step
        assert any(event["event"] == "rendezvous_completed" and "resume_step" in event for event in log.events)
        log.launch(1, 0.02)
        log.train(1, 1, 60, 0.1)
        log.finish(1)
        return told_by(log.events)[1]

    assert job(50).steps_repeated == 10
    assert job(3).steps_repeated == 0


@pytest.mark.parametrize("first_reading", [True, False])
def test_the_first_step_is_told_or_inferred_from_the_pace(first_reading: bool) -> None:
    log = EventLogWriter(step_s=0.1)
    events = log.run([Fault(60, kept=40)], total=100)
    if not first_reading:
        seen: set[object] = set()
        kept = []
        for event in events:
            if event["event"] == "progress" and event["generation"] not in seen:
                seen.add(event["generation"])
                continue
            kept.append(event)
        events = kept
    _, told = told_by(events)
    assert (told.steps[1].first, told.steps_done, told.steps_repeated) == (41, 100, 20)


def test_steps_may_begin_anywhere() -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    log.train(0, 1001, 100, 0.1)
    log.finish(0)
    _, told = told_by(log.events)
    assert (told.steps_done, told.steps_repeated) == (100, 0)


def test_without_beats_nothing_is_claimed() -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    log.at += 20.0
    log.fail(0, Fault(0))
    log.launch(1, 0.02)
    log.finish(1, 10.0)
    _, told = told_by(log.events)
    assert (told.training, told.infrastructure, told.heard) == (None, None, False)
    assert told.by_use[Use.UNKNOWN] == near(30.0)
    assert told.lost_s < 1.0


def test_first_beats_alone_give_infrastructure_goodput_only() -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    log.write("training_resumed", 0, 2.0)
    log.finish(0, 8.0)
    _, told = told_by(log.events)
    assert told.training is None
    assert told.infrastructure == near(8.0 / 10.022)


def test_a_pause_does_not_make_repeated_steps_slow() -> None:
    log = EventLogWriter(step_s=0.1)
    log.write("job_started")
    log.start(0)
    log.train(0, 1, 100, 0.1)
    log.fail(0, Fault(100))
    log.launch(1, 0.02)
    log.train(1, 51, 100, 0.1)
    last = log.events[-1]
    log.at += 600.0
    log.events[-1] = {**last, "monotonic": log.at, "last_beat": log.at}
    log.finish(1)
    _, told = told_by(log.events)
    # The median of 0.1 s and 6.1 s a step, times 50: far below half of the 610 s.
    assert told.by_use[Use.REPEATED] <= 50 * (0.1 + 6.2) / 2


def test_a_run_that_goes_on_ends_where_its_records_do_or_now() -> None:
    log = EventLogWriter(step_s=0.1)
    log.write("job_started")
    log.start(0)
    log.train(0, 1, 100, 1.0)
    ledger = Ledger()
    for event in log.events:
        ledger.feed(event)
    assert ledger.history().wall_s == near(11.022)
    late = account(ledger.history(now=log.at + 9.0))
    assert (late.wall_s, late.by_use[Use.UNFINISHED]) == (near(20.022), near(9.0))


@pytest.mark.parametrize("after_decision", [False, True])
def test_a_corrected_cause_takes_the_place_of_the_first_and_changes_no_time(after_decision: bool) -> None:
    events = EventLogWriter().run([Fault(60, kind="exception", reason="RuntimeError: lost", local_rank=0)], total=100)
    before, told_before = told_by(events)
    index = next(index for index, event in enumerate(events) if event["event"] == "decided") + after_decision
    cause = {"kind": "signal", "reason": "was killed by SIGKILL", "rank": 1, "local_rank": 1}
    correction = {"event": "cause_corrected", "generation": 0, "monotonic": events[index]["monotonic"], **cause}
    correction["at"] = before.incidents[0].cause.at
    history, told = told_by([*events[:index], correction, *events[index:]])
    assert (told.losses[0].cause, history.incidents[0].cause.rank) == ("SIGKILL", 1)
    assert (history.incidents[0].decision, told.by_use) == ("restart", told_before.by_use)


def test_lines_that_are_none_are_passed_over(tmp_path: Path) -> None:
    events: list[Event | bytes] = list(EventLogWriter().run([Fault(60, kept=50)], total=100))
    garbage = [
        b"\xff\xfe garbage\n",
        b"[1, 2]\n",
        b'{"event": "progress"}\n',
        b'{"event": "progress", "monotonic": "late", "generation": 0}\n',
        b'{"event": "progress", "monotonic": 1e999, "generation": 0, "step": 7}\n',
        b'{"event": "failure_detected", "monotonic": 1000.1, "generation": "zero", "at": []}\n',
        b'{"event": "progress", "monotonic": 1000.2, "generation": true, "step": 1' + b"0" * 400 + b"}\n",
        b'{"event": "workers_started", "monotonic": 1000.3, "generation": -1, "pids": {}}\n',
    ]
    clean = account(read_history(write_run(tmp_path / "clean", events)))
    for index, line in enumerate(garbage):
        events.insert(3 + 2 * index, line)
    dirty = read_history(write_run(tmp_path / "dirty", [*events, b'{"event": "progress", "generation": 1, "st']))
    assert account(dirty).by_use == clean.by_use


def test_a_log_cut_anywhere_is_read(tmp_path: Path) -> None:
    events = EventLogWriter().run([Fault(60, kept=50), Fault(20, kind="exception", reason="E: x")], total=100)
    for end in range(len(events) + 1):
        told = account(read_history(write_run(tmp_path / str(end), events[:end])))
        assert sum(told.by_use.values()) == near(told.wall_s)


def test_a_long_run_keeps_few_readings() -> None:
    ledger = Ledger()
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    for event in log.events:
        ledger.feed(event)
    for number in range(1, 20_001):
        at = 2000.0 + number
        reading = {"step": number, "beating_since": 2001.0, "last_beat": at, "checkpoints": number // 5000}
        ledger.feed({"event": "progress", "monotonic": at, "generation": 0, **reading})
    readings = ledger.history().generations[0].readings
    assert len(readings) < 600
    assert [reading.step for reading in (readings[0], readings[1], readings[-1])] == [1, 2, 20_000]
    assert account(ledger.history()).steps_done == 20_000


def test_incidents_tell_more_than_events(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", EventLogWriter().run([Fault(5), Fault(5)], total=20))
    folder = run / "incidents"
    folder.mkdir()
    (folder / "000.json").write_text(
        '{"version": 1, "generation": 0, "cause": {"kind": "signal", "reason": "was OOM-killed", "rank": 0, '
        '"exit_code": -9, "host": "node9"}, "decision": "restart", "decision_reason": "because"}'
    )
    (folder / "001.json").write_text(
        '{"version": 1, "generation": 1, "cause": {"kind": "signal", "reason": ["no", "text"]}, '
        '"decision": "restart", "decision_reason": "because"}'
    )
    (folder / "002.json").write_text("{")
    history = read_history(run)
    assert history.incidents[0].cause.reason == "was OOM-killed"
    assert (history.incidents[1].cause.reason, history.incidents[1].cause.host) == ("was killed by SIGKILL", "node0")


# -- what holds for any log ------------------------------------------------------------------------------------------

_names = st.sampled_from(
    [
        *("job_started", "rendezvous_completed", "workers_started", "training_resumed", "progress", "failure_detected"),
        *("decided", "worker_exited", "workers_stopped", "gpu_reclaimed", "checkpoint_saved", "job_finished", "other"),
    ]
)
_odd = st.one_of(
    st.none(), st.integers(-5, 50), st.floats(900, 1100), st.text(max_size=3), st.booleans(), st.just([1, 2])
)
_moment = st.one_of(st.floats(0, 1e6), st.just(float("nan")), st.just(float("inf")), st.integers(-10, 10**20))
_events = st.lists(
    st.fixed_dictionaries(
        {"event": _names, "monotonic": st.one_of(st.floats(1000, 1010), _moment), "generation": st.integers(-1, 3)},
        optional={
            **dict.fromkeys(
                ("rank", "local_rank", "step", "ticks", "checkpoints", "warm", "nodes", "group_rank"), _odd
            ),
            **dict.fromkeys(("group_rank", "pids", "kind", "reason", "resume_step", "world_size", "exit_code"), _odd),
            **{key: st.one_of(_odd, _moment) for key in ("at", "beating_since", "last_beat")},
        },
    ),
    max_size=40,
)


@given(_events, st.one_of(st.none(), st.floats(0, 1e7)))
@settings(max_examples=150, deadline=None)
def test_any_log_gives_goodput_between_0_and_1_and_uses_all_time_once(events: list[Event], now: float | None) -> None:
    ledger = Ledger()
    for event in events:
        ledger.feed(event)
    told = account(ledger.history(now))
    cursor = ledger.history(now).started_at
    for stretch in told.stretches:
        assert stretch.start == cursor and stretch.end > cursor
        cursor = stretch.end
    assert sum(told.by_use.values()) == pytest.approx(told.wall_s, rel=1e-6, abs=1e-6)
    for share in (told.training, told.infrastructure):
        assert share is None or 0.0 <= share <= 1.0
    if told.training is not None and told.infrastructure is not None:
        assert told.training <= told.infrastructure
    assert told.lost_s <= told.wall_s * (1 + 1e-9) + 1e-6
    assert all(steps.new >= 0 and steps.repeated >= 0 and steps.count >= 1 for steps in told.steps.values())


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1), st.floats(0.01, 3.0)), max_size=6),
    st.integers(2, 200),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_real_job_counts_every_step_once(plan: list[tuple[int, float, float]], rest: int, explicit: bool) -> None:
    done, highest, faults = 0, 0, []
    for steps, kept, recovery_s in plan:
        highest = max(highest, done + steps)
        done = int(kept * (done + steps)) if explicit else 0
        faults.append(Fault(steps, setup_s=recovery_s, kept=done))
    log = EventLogWriter(explicit=explicit)
    history, told = told_by(log.run(faults, total=done + rest))
    assert told.steps_done == max(highest, done + rest)
    assert told.steps_done + told.steps_repeated == sum(steps for steps, _, _ in plan) + rest
    assert told.training is not None and told.infrastructure is not None
    assert 0 < told.training <= told.infrastructure < 1
    assert len(history.restarts) == len(plan)
