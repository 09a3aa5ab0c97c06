"""The agent's view: one object through generations, pauses, suspension; and ranks slower than the others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ftlaunch.heartbeat.watching.limits import CHECKPOINT, Limit, Source
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.stalls import first_due
from ftlaunch.heartbeat.watching.stragglers import HOLD_S, MIN_STEPS, Straggler, StragglerWatch, lags
from ftlaunch.heartbeat.watching.watch import Watch
from ftlaunch.launcher.config import HeartbeatConfig
from support.beats import FIRST_PID, Speaker

STEP_S = 0.1


class Job:
    """A watch with speakers."""

    def __init__(self, ranks: int = 2, **options: Any) -> None:
        self.watch = Watch(HeartbeatConfig(**{"floor_s": 3.0, **options}))
        self.speakers: list[Speaker] = []
        self.begin(0, ranks, 0.0)

    def begin(self, generation: int, ranks: int, now: float) -> None:
        pids = [FIRST_PID + rank for rank in range(ranks)]
        self.watch.begin(generation, pids, now)
        self.speakers = [Speaker(rank, pid, generation) for rank, pid in enumerate(pids)]

    def train(self, start: float, steps: int = 60) -> float:
        now = start
        for _ in range(steps):
            now += STEP_S
            for speaker in self.speakers:
                self.watch.hear(speaker.tick(now))
        return now

    def states(self) -> dict[int, ProcState]:
        return {rank: ProcState(pid, "S") for rank, pid in self.watch.pids().items()}

    def assess(self, now: float, asleep_s: float = 0.0) -> Any:
        return self.watch.assess(self.states(), now, asleep_s)

    def limit(self, rank: int) -> Limit | None:
        due = first_due(self.watch.tracks.ranks[rank], self.watch.tracks, self.watch.limits)
        return due.limit if due is not None else None

    def stalled_at(self, start: float, end: float, asleep_s: float = 0.0) -> float:
        """Judge at every deadline as the agent does; when the first stall came, infinite if none."""
        now = start
        while now <= end:
            assessment = self.assess(now, asleep_s)
            if assessment.stalls:
                return now
            now = assessment.next_deadline
        return math.inf


def test_what_was_learnt_lives_on_in_the_next_generation_and_what_was_open_does_not() -> None:
    job = Job()
    now = job.train(0.0)
    job.watch.hear(job.speakers[0].open(CHECKPOINT, now))
    assert job.watch.is_saving(0) and not job.watch.is_saving(1) and not job.watch.is_saving(9)
    job.begin(1, 2, now)
    assert not job.watch.is_saving(0)
    assert job.watch.progress() == (False, None, 0, 0, None)
    now = job.train(now, 10)
    assert job.limit(0) == (3.0, Source.LEARNT)


def test_a_stopped_agent_raises_no_alarm_when_it_goes_on() -> None:
    """Its deadline has passed long ago, the beats of that time found the queue full, and a rank's next one is due."""
    job = Job()
    now = job.train(0.0)
    deadline = job.assess(now).next_deadline
    assert not job.assess(deadline + 100.0).stalls
    found_at = job.stalled_at(deadline + 100.0, deadline + 200.0)
    assert found_at == pytest.approx(deadline + 100.0 + 1.5, abs=0.1), "but a rank that is still silent is found"


def test_a_suspended_machine_raises_no_alarm_when_it_comes_back() -> None:
    """CLOCK_MONOTONIC stood still, but ranks need time to come back: GPU, network."""
    job = Job()
    now = job.train(0.0)
    job.assess(now, asleep_s=50.0)
    assert not job.assess(now + 2.3, asleep_s=9000.0).stalls
    assert job.stalled_at(now + 2.3, now + 100.0, asleep_s=9000.0) == pytest.approx(now + 5.3, abs=0.1)


def test_hearing_says_when_a_deadline_may_be_earlier() -> None:
    job = Job(1, section_timeouts_s={"short": 0.5})
    speaker = job.speakers[0]
    assert job.watch.hear(speaker.hello(0.1))
    assert job.watch.hear(speaker.tick(0.2))
    now, changed = 0.2, []
    for _ in range(60):
        now += STEP_S
        changed.append(job.watch.hear(speaker.tick(now)))
    assert sum(changed) == 1, "once, when the rhythm was known"
    assert job.watch.hear(speaker.open("short", now))
    assert job.assess(now).next_deadline <= now + 0.5


def test_children_are_counted_only_while_it_matters() -> None:
    job = Job()
    now = job.train(0.0)
    assert not job.watch.wants_children(now + 0.5)
    assert job.watch.wants_children(now + 1.5)
    job.watch.exited(0, 0, now)
    assert job.watch.wants_children(now + 0.1)


def test_excused_ranks_get_the_whole_time_again() -> None:
    job = Job()
    now = job.train(0.0)
    assert job.stalled_at(now, now + 2.9) == math.inf
    job.watch.excuse(now + 2.9)
    assert job.stalled_at(now + 2.9, now + 4.0) == math.inf
    job.watch.tracks.paused(now + 4.0, 1.0)
    assert job.stalled_at(now + 4.0, now + 100.0) == pytest.approx(now + 6.9, abs=0.1)


def test_the_limit_that_counts_is_that_of_the_silence_that_ends_first() -> None:
    job = Job(3, section_timeouts_s={"data": 7.0})
    now = job.train(0.0)
    assert job.limit(0) == (3.0, Source.LEARNT)
    job.watch.hear(job.speakers[1].open("data", now))
    job.watch.exited(2, 0, now)
    assert (job.limit(0), job.limit(2)) == (None, None), "one may wait for the section, the other one has ended"
    assert job.limit(1) == (7.0, Source.CONFIGURED)


def test_without_ranks_there_is_nothing_to_do() -> None:
    watch = Watch(HeartbeatConfig())
    assert watch.assess({}, 5.0).next_deadline == math.inf
    assert watch.pids() == {} and watch.find_stragglers(100.0) == []


# -- stragglers -----------------------------------------------------------------------------------------------------


def series(step_s: float, steps: int = 40, late_s: float = 0.0, jitter: float = 0.0) -> list[tuple[int, int]]:
    return [(n, round((n * step_s + late_s + (jitter if n % 3 else 0.0)) * 1e9)) for n in range(1, steps + 1)]


def test_a_rank_whose_own_steps_take_longer() -> None:
    found = lags({0: series(1.0), 1: series(1.0), 2: series(1.6), 3: series(1.1)})
    assert list(found) == [2] and found[2].kind == "slow"
    assert found[2].reason == "takes 1.6 s for a step, the others 1 s"


def test_a_rank_that_comes_last_out_of_every_step() -> None:
    found = lags({0: series(1.0), 1: series(1.0, late_s=0.4), 2: series(1.0, late_s=0.01)})
    assert list(found) == [1] and found[1].kind == "late"
    assert found[1].late_s == pytest.approx(0.395)


def every(steps: list[tuple[int, int]], nth: int, offset: int) -> list[tuple[int, int]]:
    """Only some steps are told."""
    return steps[offset::nth]


def test_fast_steps_of_which_not_all_are_told() -> None:
    found = lags(
        {
            0: every(series(0.02, 400), 5, 0),
            1: every(series(0.02, 400, late_s=0.012), 5, 3),
            2: every(series(0.02, 400), 5, 2),
        }
    )
    assert list(found) == [1] and found[1].kind == "late"
    assert found[1].step_s == pytest.approx(0.02) and found[1].late_s == pytest.approx(0.012)
    found = lags({0: every(series(0.02, 400), 5, 0), 1: every(series(0.04, 400), 3, 0)})
    assert list(found) == [1] and found[1].kind == "slow"
    assert lags({0: every(series(0.02, 400), 5, 0), 1: every(series(0.02, 400), 5, 4)}) == {}


@pytest.mark.parametrize(
    "ranks",
    [
        {},
        {0: series(1.0)},
        {0: series(1.0, MIN_STEPS), 1: series(9.0, MIN_STEPS)},  # not enough steps
        {0: series(1.0), 1: series(1.4)},  # not enough slower
        {0: series(1.0), 1: series(1.0, late_s=0.2)},  # not late enough
        {0: series(0.01), 1: series(0.01, late_s=0.004)},  # too little to be anything
        {0: series(1.0, late_s=0.4, jitter=0.5), 1: series(1.0, late_s=0.6, jitter=-0.5)},  # in turns
        {0: series(1.0), 1: [(n + 1000, at) for n, at in series(1.0, late_s=0.9)]},  # no step in common
    ],
)
def test_ranks_that_do_not_stand_out(ranks: dict[int, list[tuple[int, int]]]) -> None:
    assert lags(ranks) == {}


def test_only_who_stands_out_for_long_is_reported_once_and_taken_back_once() -> None:
    watch = StragglerWatch()
    odd = {0: series(1.0), 1: series(2.0)}
    even = {0: series(1.0), 1: series(1.0)}
    reports: list[tuple[float, Straggler]] = []
    for now in range(0, 120, 10):
        reports += [(now, change) for change in watch.update(odd if now < 60 else even, float(now))]
    (began_at, began), (ended_at, ended) = reports
    assert began_at == HOLD_S and began.local_rank == 1 and began.lag is not None and began.since == 0.0
    assert ended_at == 50 + HOLD_S and ended.lag is None
    assert watch.reported == {}


def test_a_hiccup_is_not_reported() -> None:
    watch = StragglerWatch()
    for now in range(0, 200, 10):
        sometimes = 2.0 if now % 60 == 0 else 1.0
        assert watch.update({0: series(1.0), 1: series(sometimes)}, float(now)) == []


def test_the_watch_looks_for_stragglers_every_ten_seconds() -> None:
    job = Job(2)
    reports = []
    now = 0.0
    for step in range(1, 800):
        now = step * STEP_S
        job.watch.hear(job.speakers[0].tick(now))
        job.watch.hear(job.speakers[1].tick(now + 0.05))
        reports += job.watch.find_stragglers(now)
    assert [report.local_rank for report in reports] == [1]
    lag = job.watch.stragglers.reported[1].lag
    assert lag is not None and "last" in lag.reason
    job.begin(1, 2, now)
    assert job.watch.stragglers.reported == {}
