"""How long a silence may last: configured, learnt, default."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat.watching.limits import CHECKPOINT, EVAL, INIT, MIN_STEPS, STEP, WARM_UP, Limits, Source
from ftlaunch.launcher.config import HeartbeatConfig


def limits(**options: Any) -> Limits:
    return Limits(HeartbeatConfig(**options))


def learn_steps(table: Limits, gap_s: float, count: int = MIN_STEPS) -> None:
    for _ in range(count):
        table.learn(STEP, gap_s)


def seconds(table: Limits, section: str, steps: int | None = None) -> tuple[float, Source]:
    return tuple(table.of(section, steps=steps))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("section", "expected"),
    [(STEP, 600.0), (INIT, 1800.0), (CHECKPOINT, 1800.0), (EVAL, 1800.0), ("mine", 600.0)],
)
def test_until_calibrated_limits_are_generous(section: str, expected: float) -> None:
    assert seconds(limits(), section) == (expected, Source.DEFAULT)


def test_step_is_learnt_from_enough_gaps_and_not_from_fewer() -> None:
    table = limits()
    learn_steps(table, 5.0, MIN_STEPS - 1)
    assert seconds(table, STEP) == (600.0, Source.DEFAULT)
    before = table.version
    table.learn(STEP, 4.0)
    assert seconds(table, STEP) == (50.0, Source.LEARNT)
    assert table.version > before, "the agent must hear that a deadline may be earlier now"


@pytest.mark.parametrize(
    ("options", "gap_s", "expected"),
    [
        ({}, 0.02, 30.0),  # the floor
        ({"floor_s": 3.0}, 0.02, 3.0),
        ({}, 7.0, 70.0),  # the factor
        ({"safety_factor": 3.0}, 20.0, 60.0),
        ({}, 100.0, 600.0),  # never above --hang-timeout
        ({"hang_timeout_s": 2.0}, 0.02, 2.0),  # not even for the floor
        ({"section_timeouts_s": {STEP: 7.0}}, 100.0, 7.0),  # exactly what was said
        ({"section_timeouts_s": {STEP: 7000.0}}, 0.1, 7000.0),
    ],
)
def test_learnt_step_limit(options: dict[str, Any], gap_s: float, expected: float) -> None:
    table = limits(**options)
    learn_steps(table, gap_s)
    assert table.of(STEP).seconds == pytest.approx(expected)


def test_where_other_nodes_do_not_tell_every_learnt_limit_is_roomy() -> None:
    table = limits()
    assert table.untold_s(STEP) == 600.0
    learn_steps(table, 0.1)
    assert (table.of(STEP).seconds, table.untold_s(STEP)) == (30.0, 300.0)
    assert limits(section_timeouts_s={STEP: 7.0}).untold_s(STEP) == 7.0


def test_what_was_learnt_does_not_hold_for_first_steps_of_a_generation() -> None:
    table = limits()
    learn_steps(table, 0.1)
    assert seconds(table, STEP, steps=WARM_UP) == (600.0, Source.DEFAULT)
    assert seconds(table, STEP, steps=WARM_UP + 1) == (30.0, Source.LEARNT)


def test_first_steps_are_a_lower_bound_but_are_not_multiplied() -> None:
    table = limits()
    table.learn(STEP, 100.0, warm=True)
    learn_steps(table, 0.1)
    assert table.of(STEP).seconds == pytest.approx(150.0)
    table = limits()
    table.learn_start(90.0)
    learn_steps(table, 0.1)
    assert table.of(STEP).seconds == pytest.approx(90.0), "a recompile may take as long as the first compile"


def test_after_a_learnt_limit_has_ended_a_generation_the_same_place_gets_the_full_time_once() -> None:
    table = limits()
    learn_steps(table, 0.1)
    table.distrust(5000)
    assert table.of(STEP, steps=4990).seconds == 600.0
    assert table.of(STEP, steps=5005).seconds == 600.0
    assert table.of(STEP, steps=5011).seconds == 30.0


def test_checkpoint_is_learnt_from_visits_with_a_roomy_floor() -> None:
    table = limits()
    for _ in range(2):
        table.learn(CHECKPOINT, 2.0, visit=True)
    assert table.of(CHECKPOINT).source is Source.DEFAULT
    table.learn(CHECKPOINT, 2.0, visit=True)
    assert seconds(table, CHECKPOINT) == (300.0, Source.LEARNT)
    table.learn(CHECKPOINT, 100.0, visit=True)
    assert table.of(CHECKPOINT).seconds == 1000.0, "may be above --hang-timeout, which is for steps"


def test_waiting_for_other_nodes_teaches_nothing() -> None:
    table = limits()
    for _ in range(50):
        table.learn(INIT, 0.1, visit=True)
    assert seconds(table, INIT) == (1800.0, Source.DEFAULT)


def test_before_the_first_step_a_section_may_take_as_long_as_a_start() -> None:
    table = limits(hang_timeout_s=10.0, init_timeout_s=500.0, section_timeouts_s={"data": 3.0})
    for name in (CHECKPOINT, "mine"):
        assert table.of(name, steps=0).seconds == 500.0
    assert table.of("data", steps=0).seconds == 3.0


@pytest.mark.parametrize("none", [0.0, -1.0, math.inf])
def test_zero_means_no_limit(none: float) -> None:
    table = limits(hang_timeout_s=none, init_timeout_s=none, section_timeouts_s={"mine": none})
    for name in (STEP, INIT, "mine"):
        assert table.of(name).seconds == math.inf


def test_an_unknown_section_has_the_most_lenient_limit() -> None:
    table = limits(section_timeouts_s={"long": 5000.0})
    assert table.most_lenient().seconds == 5000.0
    assert limits().most_lenient().seconds == 1800.0


def test_a_script_with_endless_section_names_does_not_fill_the_memory() -> None:
    table = limits()
    for number in range(10_000):
        table.learn(f"step {number}", 1.0, visit=True)
    assert sum(row.gaps > 0 for row in table.table()) == 256
    assert table.of("step 9999").source is Source.DEFAULT


def test_table_shows_the_usual_sections_the_configured_and_the_seen() -> None:
    table = limits(section_timeouts_s={"data": 3.0})
    learn_steps(table, 1.0)
    table.learn("mine", 2.0, visit=True)
    rows = {row.section: row for row in table.table()}
    assert list(rows) == [STEP, INIT, CHECKPOINT, EVAL, "data", "mine"]
    assert rows[STEP].gaps == MIN_STEPS and rows[STEP].longest_s == 1.0
    assert rows["data"].limit.source is Source.CONFIGURED


@given(
    gaps=st.lists(st.tuples(st.sampled_from([STEP, CHECKPOINT, "x"]), st.floats(0, 1e6), st.booleans(), st.booleans())),
    steps=st.integers(0, 10_000),
)
def test_no_history_makes_a_limit_that_is_not_positive_or_above_its_ceiling(
    gaps: list[tuple[str, float, bool, bool]], steps: int
) -> None:
    table = limits(floor_s=3.0)
    for section, gap_s, warm, visit in gaps:
        table.learn(section, gap_s, warm=warm, visit=visit)
    for section in (STEP, CHECKPOINT, INIT, "x"):
        limit = table.of(section, steps=steps)
        assert limit.seconds > 0
        if steps:
            assert limit.seconds <= table.ceiling(section)
        if limit.source is Source.LEARNT:
            assert limit.seconds >= 3.0 and limit.seconds >= min(table.longest_s(section), table.ceiling(section))


def test_place_that_cost_a_generation_its_life_is_known_by_the_scripts_own_step() -> None:
    table = limits()
    learn_steps(table, 0.1)
    table.distrust(18, at=1618)
    assert table.of(STEP, steps=16, at=1841).source is Source.LEARNT
    assert table.of(STEP, steps=16, at=1616).source is Source.DEFAULT
    assert table.of(STEP, steps=3000, at=1620).source is Source.DEFAULT
    assert table.of(STEP, steps=3, at=1841).source is Source.DEFAULT
