"""A run as values. Times are CLOCK_MONOTONIC seconds of the node that wrote the events, unless they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ftlaunch.launcher.journal.incident import Incident


@dataclass(frozen=True)
class Reading:
    """One ``progress`` event: how far this node's ranks had come. Counts are those of the generation."""

    at: float
    step: int | None = None
    """Highest step that the script told."""
    ticks: int = 0
    """Optimizer steps that the hooks counted."""
    checkpoints: int = 0
    checkpoint_step: int | None = None
    beating_since: float | None = None
    last_beat: float | None = None


@dataclass(frozen=True)
class Pulse:
    """What is heard of one rank at this moment. ``beat_age_s`` is ``None`` before its first beat."""

    rank: int
    beat_age_s: float | None = None
    step: int | None = None
    ticks: int = 0
    step_s: float | None = None


@dataclass(frozen=True)
class RankExit:
    """The end of one rank's process. ``exit_code`` is negative for a signal."""

    rank: int
    at: float
    exit_code: int | None = None


@dataclass(frozen=True)
class Failed:
    """What ended a generation, as ``failure_detected``, ``cause_corrected`` and ``decided`` told it."""

    kind: str
    reason: str
    at: float
    """When it happened, for a death; otherwise when it was seen."""
    detected_at: float
    rank: int | None = None
    local_rank: int | None = None
    step: int | None = None
    decision: str = ""
    decision_reason: str = ""


@dataclass(frozen=True)
class Diagnosed:
    """What the evidence made of a failure, as ``diagnosed`` told it; ``kind`` as in
    :mod:`ftlaunch.launcher.evidence.diagnosis`."""

    kind: str
    sentence: str
    confidence: str = ""
    hint: str = ""
    """What would have helped; may be empty."""
    rank: int | None = None
    """Which rank brought the generation down; need not be the first that failed."""


@dataclass(frozen=True)
class Generation:
    """One life of the ranks, on one node. ``None`` where the records have nothing (yet)."""

    number: int
    agreed_at: float | None = None
    started_at: float | None = None
    resumed_at: float | None = None
    """The first beat, as far as an event of its own tells of it."""
    failed: Failed | None = None
    diagnosed: Diagnosed | None = None
    stopped_at: float | None = None
    reclaimed_at: float | None = None
    nodes: int = 1
    world_size: int | None = None
    group_rank: int | None = None
    rank_offset: int | None = None
    slots: int = 0
    """Ranks on this node."""
    warm: int = 0
    """How many of them were standbys."""
    resume_step: int | None = None
    resume_from: str = ""
    saved_at: float | None = None
    """When the last checkpoint was heard of."""
    saved_step: int | None = None
    readings: tuple[Reading, ...] = ()
    """The first ones and the last one always, of many in between some."""
    exits: tuple[RankExit, ...] = ()
    drills: tuple[str, ...] = ()
    """Faults that a drill brought about in it: ``kill at step 12``."""

    @property
    def ranks(self) -> range:
        """The global ranks of this node."""
        first = self.rank_offset if self.rank_offset is not None else (self.group_rank or 0) * self.slots
        return range(first, first + self.slots)

    @property
    def first_beat(self) -> float | None:
        """When the first beat came; ``None`` when none was heard."""
        if self.resumed_at is not None:
            return self.resumed_at
        return next((reading.beating_since for reading in self.readings if reading.beating_since is not None), None)

    @property
    def last_beat(self) -> float | None:
        """When the last beat came, as far as a reading tells."""
        return max((reading.last_beat for reading in self.readings if reading.last_beat is not None), default=None)


@dataclass(frozen=True)
class History:
    """Everything known of a run on one node."""

    generations: tuple[Generation, ...] = ()
    incidents: Mapping[int, Incident] = field(default_factory=dict)
    """By generation; made up from the events where ``incidents/`` has none."""
    started_at: float = 0.0
    ended_at: float = 0.0
    """The end of the job; of the records, where they do not reach it."""
    started: str = ""
    """Wall time."""
    finished: bool = False
    exit_code: int | None = None
    reason: str = ""
    run_id: str = ""
    job_id: str = ""
    host: str = ""
    command: tuple[str, ...] = ()
    place: str = ""
    """The run directory."""

    @property
    def wall_s(self) -> float:
        """Seconds from the agent's start to its end."""
        return max(0.0, self.ended_at - self.started_at)

    @property
    def restarts(self) -> tuple[Generation, ...]:
        """Generations that failed and were followed by another one."""
        return tuple(item for item in self.generations[:-1] if item.failed is not None)

    @property
    def ranks(self) -> int:
        """Most ranks that this node had."""
        return max((generation.slots for generation in self.generations), default=0)
