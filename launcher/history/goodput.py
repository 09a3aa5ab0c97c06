"""Where the time of a run went: goodput, and what each incident cost.

*Training goodput* is the time of steps that count, each step once, over wall time; *infrastructure goodput* the time
in which steps run, repeated ones included, over wall time. Both are estimates from beats:

* Steps run from one step before the first beat of a generation to its last beat. Saves and evaluations in between count
  as running; the step that a failure broke off does not.
* Repeated steps take as long as a step typically does in the job, and never more than their share of the steps of
  the generation.
* Which steps were repeated is known as well as the step numbers are: where the script tells them they count; otherwise
  each generation is taken to go on from the last checkpoint that was heard of, and without one from the beginning.
* A script that counts its steps anew (for each epoch, say) looks as if it repeated them.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ftlaunch.launcher.history.causes import cause_name
from ftlaunch.launcher.history.model import Diagnosed, Failed, Generation, History
from ftlaunch.launcher.history.steps import Steps, seconds_per_step, steps_of, typical_step_s
from ftlaunch.launcher.journal.incident import Incident


class Use(enum.Enum):
    """What a stretch of time went for. The phases of a recovery are named as their events."""

    STEPS = "steps"
    REPEATED = "repeated_steps"
    UNFINISHED = "unfinished_step"
    """From the last beat to the failure: a step that was broken off, or the silence of a stall."""
    DETECTED = "failure_detected"
    STOPPED = "workers_stopped"
    RECLAIMED = "gpu_reclaimed"
    AGREED = "rendezvous_completed"
    STARTED = "workers_started"
    RESUMED = "training_resumed"
    """From the start of the ranks to their first step: imports, set-up, loading the checkpoint."""
    END = "end"
    """After the last step: last save, evaluation, exit."""
    UNKNOWN = "not_known"
    """Ranks ran, and no beat was heard of them."""


GOOD = (Use.STEPS, Use.REPEATED)


@dataclass(frozen=True)
class Stretch:
    """Some time and its use. ``incident``: the generation whose failure it is owed to, if any."""

    start: float
    end: float
    use: Use
    generation: int
    incident: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Loss:
    """What one incident cost."""

    incident: Incident
    cause: str
    at_s: float
    """Seconds after the start of the job."""
    phases_s: Mapping[Use, float]
    """Seconds of each phase of the recovery, up to the first beat."""
    recovery_s: float | None
    """From the failure to the first beat; ``None`` when training did not go on."""
    repeated_steps: int
    by_use: Mapping[Use, float]
    diagnosed: Diagnosed | None = None
    drills: tuple[str, ...] = ()
    """Faults that a drill had brought about in that generation."""

    @property
    def lost_s(self) -> float:
        """Everything together: recovery, repeated steps, the step that was broken off."""
        return sum(self.by_use.values())


@dataclass(frozen=True)
class Account:
    """The whole run."""

    wall_s: float = 0.0
    stretches: tuple[Stretch, ...] = ()
    """All of the wall time, in order, without gaps."""
    losses: tuple[Loss, ...] = ()
    steps: Mapping[int, Steps] = field(default_factory=dict)
    step_s: float | None = None
    heard: bool = False
    """Whether any beat was heard."""

    @property
    def training(self) -> float | None:
        """Training goodput, 0 to 1; ``None`` when no step was told or counted."""
        return self._share(Use.STEPS) if self.steps else None

    @property
    def infrastructure(self) -> float | None:
        """Infrastructure goodput, 0 to 1; ``None`` when no beat was heard."""
        return self._share(*GOOD) if self.heard else None

    @property
    def by_use(self) -> dict[Use, float]:
        """Seconds for each use that there was, in the order of :class:`Use`."""
        sums = _sums(self.stretches)
        return {use: sums[use] for use in Use if use in sums}

    @property
    def steps_done(self) -> int:
        """Steps that count."""
        return sum(steps.new for steps in self.steps.values())

    @property
    def steps_repeated(self) -> int:
        """Steps that were done before."""
        return sum(steps.repeated for steps in self.steps.values())

    @property
    def lost_s(self) -> float:
        """Seconds lost by all incidents."""
        return sum(loss.lost_s for loss in self.losses)

    def lost_by_cause(self) -> dict[str, tuple[int, float]]:
        """Incidents and seconds for each cause, the costliest first."""
        found: dict[str, tuple[int, float]] = {}
        for loss in self.losses:
            count, seconds = found.get(loss.cause, (0, 0.0))
            found[loss.cause] = (count + 1, seconds + loss.lost_s)
        return dict(sorted(found.items(), key=lambda item: (-item[1][1], item[0])))

    def _share(self, *uses: Use) -> float:
        sums = _sums(self.stretches)
        return min(1.0, sum(sums.get(use, 0.0) for use in uses) / self.wall_s) if self.wall_s > 0 else 0.0


def account(history: History) -> Account:
    """Give every second of the run its use."""
    steps = steps_of(history.generations)
    step_s = typical_step_s(history.generations, steps)
    heard = any(item.first_beat is not None for item in history.generations)
    stretches = tuple(_walk(history, steps, step_s, heard))
    return Account(history.wall_s, stretches, _losses(history, steps, stretches), steps, step_s, heard)


def _walk(history: History, steps: Mapping[int, Steps], step_s: float | None, heard: bool) -> Iterator[Stretch]:
    """Cut the time at the moments that are known, each cut no earlier than the one before."""
    cursor = history.started_at
    for until, use, generation, incident in _cuts(history, steps, step_s, heard):
        end = min(max(cursor, until), history.ended_at)
        if end > cursor:
            yield Stretch(cursor, end, use, generation, incident)
            cursor = end


_Cut = tuple[float, Use, int, int | None]


def _cuts(history: History, steps: Mapping[int, Steps], step_s: float | None, heard: bool) -> Iterator[_Cut]:
    incident: int | None = None
    previous: Generation | None = None
    number = 0
    for generation in history.generations:
        number = generation.number
        moments = recovery_moments(previous, generation)
        yield from ((at, use, number, incident) for at, use in moments)
        if generation.started_at is not None:
            yield from _life(generation, steps.get(number), step_s, incident, history.ended_at)
        if generation.failed is not None:
            yield from _failure(generation, generation.failed, heard)
            incident = number
        elif generation.first_beat is not None:
            incident = None
        previous = generation
    if previous is not None and previous.failed is not None and previous.stopped_at is not None:
        yield previous.stopped_at, Use.STOPPED, number, number
    use = _last_use(history, previous, heard)
    yield history.ended_at, use, number, None if use in (Use.END, Use.UNKNOWN) else incident


def _last_use(history: History, last: Generation | None, heard: bool) -> Use:
    """What came after everything that the records tell of."""
    if last is None or last.started_at is None:
        return Use.STARTED
    if last.failed is not None:
        return Use.END if history.finished or last.failed.decision == "stop" else Use.STARTED
    if not heard:
        return Use.UNKNOWN
    if history.finished:
        return Use.END
    return Use.RESUMED if last.first_beat is None else Use.UNFINISHED


def recovery_moments(failed: Generation | None, following: Generation) -> list[tuple[float, Use]]:
    """The moments between a failure, or the start of the job, and the start of the next ranks, in order of time."""
    moments = [(following.agreed_at, Use.AGREED), (following.started_at, Use.STARTED)]
    if failed is not None:
        moments += [(failed.stopped_at, Use.STOPPED), (failed.reclaimed_at, Use.RECLAIMED)]
    return sorted(((at, use) for at, use in moments if at is not None), key=lambda moment: moment[0])


def _life(
    generation: Generation, steps: Steps | None, typical_s: float | None, incident: int | None, end: float
) -> Iterator[_Cut]:
    """From the start of the ranks to their last beat; nothing where none was heard."""
    first, last, number = generation.first_beat, generation.last_beat, generation.number
    if first is None:
        return
    if last is None:
        # Only that training began is known, not how long it went on.
        last = generation.failed.at if generation.failed is not None else end
    step_s = seconds_per_step(generation, steps) or typical_s or 0.0
    begin = max(generation.started_at or 0.0, first - step_s)
    yield begin, Use.RESUMED, number, incident
    if steps is not None and steps.repeated:
        share_s = max(0.0, last - begin) * steps.repeated / steps.count
        # A pause later in the generation is no reason to take the steps at its beginning for slow ones.
        repeated_s = share_s if typical_s is None else min(share_s, steps.repeated * typical_s)
        yield begin + repeated_s, Use.REPEATED, number, incident
    yield last, Use.STEPS, number, None


def _failure(generation: Generation, failed: Failed, heard: bool) -> Iterator[_Cut]:
    """From the last thing that is known of the ranks to the moment in which the agent knew of the failure."""
    number = generation.number
    if generation.started_at is None:
        yield failed.at, Use.STARTED, number, number
    elif not heard:
        # Whether anything was lost by it cannot be said.
        yield failed.at, Use.UNKNOWN, number, None
    else:
        yield failed.at, Use.RESUMED if generation.first_beat is None else Use.UNFINISHED, number, number
    yield failed.detected_at, Use.DETECTED, number, number


def _losses(history: History, steps: Mapping[int, Steps], stretches: tuple[Stretch, ...]) -> tuple[Loss, ...]:
    owed: dict[int, list[Stretch]] = defaultdict(list)
    for stretch in stretches:
        if stretch.incident is not None:
            owed[stretch.incident].append(stretch)
    found = []
    for index, generation in enumerate(history.generations):
        incident = history.incidents.get(generation.number)
        if generation.failed is None or incident is None:
            continue
        following = history.generations[index + 1] if index + 1 < len(history.generations) else None
        phases, recovery_s = _phases(generation, following)
        again = steps.get(following.number) if following is not None else None
        found.append(
            Loss(
                incident=incident,
                cause=cause_name(incident),
                at_s=max(0.0, generation.failed.at - history.started_at),
                phases_s=phases,
                recovery_s=recovery_s,
                repeated_steps=again.repeated if again is not None else 0,
                by_use=_sums(owed[generation.number]),
                diagnosed=generation.diagnosed,
                drills=generation.drills,
            )
        )
    return tuple(found)


def _phases(failed: Generation, following: Generation | None) -> tuple[dict[Use, float], float | None]:
    """Seconds from each moment's predecessor to it, and all together once there is a first beat."""
    if failed.failed is None:
        return {}, None
    cursor = failed.failed.at
    moments = [(failed.failed.detected_at, Use.DETECTED)]
    if following is not None:
        moments += recovery_moments(failed, following)
    elif failed.stopped_at is not None:
        moments.append((failed.stopped_at, Use.STOPPED))
    resumed = following.first_beat if following is not None else None
    if resumed is not None:
        moments.append((resumed, Use.RESUMED))
    phases: dict[Use, float] = {}
    for at, use in moments:
        phases[use] = max(0.0, at - cursor)
        cursor = max(cursor, at)
    return phases, None if resumed is None else max(0.0, resumed - failed.failed.at)


def _sums(stretches: tuple[Stretch, ...] | list[Stretch]) -> dict[Use, float]:
    sums: dict[Use, float] = {}
    for stretch in stretches:
        sums[stretch.use] = sums.get(stretch.use, 0.0) + stretch.seconds
    return sums
