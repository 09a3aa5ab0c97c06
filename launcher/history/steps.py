"""Which steps each generation ran, and how many of them had been run before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ftlaunch.launcher.history.model import Generation, Reading

_NEAR_STEPS = 20
_NEAR = 0.2


@dataclass(frozen=True)
class Steps:
    """The steps of one generation: those before ``first`` were there when it began, ``last`` was the last one done."""

    first: int
    last: int
    repeated: int = 0
    """How many of them an earlier generation had done already."""

    @property
    def count(self) -> int:
        """All of them."""
        return self.last - self.first + 1

    @property
    def new(self) -> int:
        """Those that no generation before had done."""
        return self.count - self.repeated


def steps_of(generations: Sequence[Generation]) -> dict[int, Steps]:
    """By generation; one that did no step, or none that was heard of, is left out.

    With steps told by the script, these are its own numbers. Where only optimizer steps were counted, each generation
    is taken to go on from the last checkpoint that was heard of.
    """
    explicit = any(reading.step is not None for item in generations for reading in item.readings)
    found = _told(generations) if explicit else _counted(generations)
    highest: int | None = None
    for number, steps in found.items():
        known = steps.first - 1 if highest is None else highest
        repeated = max(0, min(known, steps.last) - steps.first + 1)
        found[number] = replace(steps, repeated=repeated)
        highest = max(known, steps.last)
    return found


def seconds_per_step(generation: Generation, steps: Steps | None) -> float | None:
    """Mean time of a step while steps ran; ``None`` for fewer than two of them. Saves and pauses are in it."""
    first, last = generation.first_beat, generation.last_beat
    if steps is None or steps.count < 2 or first is None or last is None or last <= first:
        return None
    return (last - first) / (steps.count - 1)


def typical_step_s(generations: Sequence[Generation], steps: Mapping[int, Steps]) -> float | None:
    """The median over the generations."""
    times = [seconds_per_step(item, steps.get(item.number)) for item in generations]
    return median([time for time in times if time is not None] or [0.0]) or None


def _told(generations: Sequence[Generation]) -> dict[int, Steps]:
    found: dict[int, Steps] = {}
    before: list[Generation] = []
    saved: int | None = None
    for generation in generations:
        told = [reading for reading in generation.readings if reading.step is not None]
        if told:
            last = max(reading.step for reading in told if reading.step is not None)
            first = _first_told(told)
            if first is None:
                first = _first_guessed(generation, last, saved, typical_step_s(before, found))
            found[generation.number] = Steps(min(first, last), last)
        known = (generation.saved_step, *(reading.checkpoint_step for reading in generation.readings))
        saved = max((step for step in known if step is not None), default=saved)
        before.append(generation)
    return found


def _first_told(told: Sequence[Reading]) -> int | None:
    """The first step, from a reading taken at the first beat or from the pace between two of them."""
    reading, second = told[0], told[1] if len(told) > 1 else None
    step, since, until = reading.step or 0, reading.beating_since, reading.last_beat
    if since is None or until is None:
        return None
    if until <= since:
        return step
    if second is None or second.last_beat is None or second.last_beat <= until or second.step is None:
        return None
    rate = (second.step - step) / (second.last_beat - until)
    return max(0, step - round(rate * (until - since)))


def _first_guessed(generation: Generation, last: int, saved: int | None, step_s: float | None) -> int:
    """What it was to resume from, the last checkpoint, the pace of the generations before: in this order."""
    if generation.resume_step is not None:
        return generation.resume_step + 1
    if saved is not None:
        return saved + 1
    since, until = generation.first_beat, generation.last_beat
    if step_s is not None and since is not None and until is not None:
        return max(0, last - round(max(0.0, until - since) / step_s))
    # A first generation that tells no more is taken to have begun at the beginning.
    return min(1, last)


def _counted(generations: Sequence[Generation]) -> dict[int, Steps]:
    found: dict[int, Steps] = {}
    base: int | None = None
    for generation in generations:
        if generation.resume_step is not None and _is_plausible(generation.resume_step, base):
            base = generation.resume_step
        ticks = max((reading.ticks for reading in generation.readings), default=0)
        if ticks:
            found[generation.number] = Steps((base or 0) + 1, (base or 0) + ticks)
        base = (base or 0) + _ticks_saved(generation)
    return found


def _is_plausible(resume_step: int, estimate: int | None) -> bool:
    """What a checkpoint calls its step may be an epoch, or count something else than optimizer steps."""
    return estimate is None or abs(resume_step - estimate) <= max(_NEAR_STEPS, _NEAR * estimate)


def _ticks_saved(generation: Generation) -> int:
    """Optimizer steps done when the last checkpoint was heard of, taken from the readings before and after it."""
    at, known = generation.saved_at, (0.0, 0)
    if at is None:
        # Told by counts only: at the latest by the first reading that has the highest one.
        most = max((reading.checkpoints for reading in generation.readings), default=0)
        return next((reading.ticks for reading in generation.readings if reading.checkpoints == most and most), 0)
    for reading in generation.readings:
        if known[1] == 0 and reading.beating_since is not None:
            known = (reading.beating_since, 1)
        if reading.last_beat is None:
            continue
        if reading.last_beat >= at:
            return known[1] + _share(known, (reading.last_beat, reading.ticks), at)
        known = (reading.last_beat, reading.ticks)
    return known[1]


def _share(before: tuple[float, int], after: tuple[float, int], at: float) -> int:
    span = after[0] - before[0]
    if span <= 0:
        return 0
    # Rounded down, as a save follows the step that it saves.
    return int(max(0, after[1] - before[1]) * max(0.0, at - before[0]) / span + 0.01)
