"""Ranks that are slower than the others, for long. Reported, never killed. Pure.

What beats can show, and what they cannot:

* ``slow``: the rank's own steps take longer than the others'. Only visible where ranks do not wait for each other in
  every step: gradient accumulation, local updates, independent ranks.
* ``late``: in lockstep all steps take equally long, whoever causes it. But the rank that comes last out of nearly every
  step, by a good part of a step, is seen. A rank that is slow *before* the collective and not after it is not: the
  others wait for it inside, and all come out together. Neither is a GPU that lags behind a host that does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MIN_STEPS = 20
RATIO = 1.5
LATE_SHARE = 0.25
LATE_OFTEN = 0.9
LATE_AT_LEAST_S = 0.005
LOCKSTEP = 1.1
"""Ranks whose steps differ by more do not wait for each other, and drift apart."""
HOLD_S = 30.0
"""A rank must stand out for so long before it is reported, and be inconspicuous as long before that is taken back."""

Series = Sequence[tuple[int, int]]
"""The last steps of a rank: step number, and the sender's CLOCK_MONOTONIC in ns."""


class Lag(NamedTuple):
    """How a rank stands out. Medians: of its step time, of the others', of how much later than them it is."""

    kind: str
    step_s: float
    others_s: float
    late_s: float = 0.0

    @property
    def reason(self) -> str:
        """A predicate about the rank."""
        if self.kind == "slow":
            return f"takes {self.step_s:.3g} s for a step, the others {self.others_s:.3g} s"
        return f"ends nearly every step last, {self.late_s:.3g} s after the others; a step takes {self.step_s:.3g} s"


class Straggler(NamedTuple):
    """A rank that began (``since`` given) or ceased (``lag`` is ``None``) to be a straggler."""

    local_rank: int
    lag: Lag | None
    since: float


def lags(series: Mapping[int, Series]) -> dict[int, Lag]:
    """Who stands out now, by local rank. Needs two ranks with ``MIN_STEPS`` steps each; about 0.2 ms for 8 ranks."""
    known = {rank: steps for rank, steps in series.items() if len(steps) > MIN_STEPS}
    if len(known) < 2:
        return {}
    step_s = {rank: _step_s(steps) for rank, steps in known.items()}
    found = {}
    for rank, own_s in step_s.items():
        others_s = _median(other for other_rank, other in step_s.items() if other_rank != rank)
        if own_s > RATIO * others_s > 0:
            found[rank] = Lag("slow", own_s, others_s)
    if not found:
        found = _late(known, step_s)
    return found


class StragglerWatch:
    """Remembers for how long who has stood out."""

    def __init__(self) -> None:
        self.reported: dict[int, Straggler] = {}
        self._since: dict[int, float] = {}
        self._until: dict[int, float] = {}

    def update(self, series: Mapping[int, Series], now: float) -> list[Straggler]:
        """Judge again, every ten seconds or so; returns who became one and who no longer is."""
        current = lags(series)
        changes = []
        for rank, lag in current.items():
            self._until[rank] = now
            since = self._since.setdefault(rank, now)
            if now - since >= HOLD_S and rank not in self.reported:
                self.reported[rank] = Straggler(rank, lag, since)
                changes.append(self.reported[rank])
        for rank in [rank for rank in self._since if now - self._until[rank] >= HOLD_S]:
            since = self._since.pop(rank)
            if self.reported.pop(rank, None) is not None:
                changes.append(Straggler(rank, None, since))
        return changes

    def forget(self) -> None:
        """A new generation begins."""
        self.reported.clear()
        self._since.clear()
        self._until.clear()


def _step_s(steps: Series) -> float:
    pairs = ((steps[index - 1], steps[index]) for index in range(1, len(steps)))
    return _median((after[1] - before[1]) / max(1, after[0] - before[0]) for before, after in pairs) / 1e9


def _median(values: Iterable[float]) -> float:
    """Of at least one value. The module statistics would cost the agent 10 ms at its start."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _late(known: Mapping[int, Series], step_s: Mapping[int, float]) -> dict[int, Lag]:
    """The rank that is the last of the common steps nearly always."""
    first = max(steps[0][0] for steps in known.values())
    last = min(steps[-1][0] for steps in known.values())
    if last - first < MIN_STEPS:
        return {}
    numbers = range(first, last, max(1, (last - first) // (2 * MIN_STEPS)))
    times = {rank: _times_of(steps, numbers) for rank, steps in known.items()}
    lateness: dict[int, list[float]] = {rank: [] for rank in times}
    for index in range(len(numbers)):
        slowest = max(times, key=lambda rank: times[rank][index])
        others = _median(times[rank][index] for rank in times if rank != slowest)
        lateness[slowest].append((times[slowest][index] - others) / 1e9)
    rank, late = max(lateness.items(), key=lambda item: len(item[1]))
    typical_s = _median(late)
    enough_s = max(LATE_AT_LEAST_S, LATE_SHARE * step_s[rank])
    others_s = _median(own_s for other, own_s in step_s.items() if other != rank)
    in_lockstep = step_s[rank] <= LOCKSTEP * others_s
    if len(late) < LATE_OFTEN * len(numbers) or typical_s < enough_s or not in_lockstep:
        return {}
    return {rank: Lag("late", step_s[rank], others_s, typical_s)}


def _times_of(steps: Series, numbers: Sequence[int]) -> list[float]:
    """When each of these steps ended, in ns. Of fast steps not all are told: in between, evenly."""
    times = []
    index = 1
    for number in numbers:
        while index < len(steps) - 1 and steps[index][0] < number:
            index += 1
        (before, before_ns), (after, after_ns) = steps[index - 1], steps[index]
        share = (number - before) / (after - before) if after > before else 0.0
        times.append(before_ns + share * (after_ns - before_ns))
    return times
