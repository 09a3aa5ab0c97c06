"""What the agent can be told to do. Decisions return these; :mod:`ftlaunch.launcher.agent` carries them out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from ftlaunch.launcher.decision.events import Failure
from ftlaunch.rendezvous.interface import Joining, Lesson, Outcome, World


class Manner(enum.Enum):
    """How workers are stopped."""

    FAILED = "failed"
    """The generation failed: SIGKILL at once, a short grace for ranks that handle SIGTERM."""
    POLITE = "polite"
    """The job is to end: pass the signal on to the leaders, long grace, then SIGKILL."""
    NOW = "now"
    """SIGKILL at once, whatever they handle."""
    SWEEP = "sweep"
    """The ranks have ended by themselves: kill what they left behind."""


@dataclass(frozen=True)
class Join:
    """Ask the rendezvous for the next generation."""

    joining: Joining


@dataclass(frozen=True)
class Announce:
    """Tell the other nodes that the generation failed here."""

    generation: int
    reason: str


@dataclass(frozen=True)
class StartWorkers:
    """Start all ranks of this node."""

    world: World


@dataclass(frozen=True)
class StopWorkers:
    """Stop all ranks of this node; a stop under way becomes at most more urgent."""

    generation: int
    manner: Manner
    reason: str
    signum: int = 15
    evidence: bool = False
    """Collect the stacks of all ranks first."""


@dataclass(frozen=True)
class Reclaim:
    """Wait until the GPUs are free again."""

    generation: int


@dataclass(frozen=True)
class WakeAt:
    """Send :class:`~ftlaunch.launcher.decision.events.BackoffOver` at this moment."""

    generation: int
    at: float


@dataclass(frozen=True)
class Conclude:
    """The generation's fate is decided: write the incident. ``restart`` tells what follows."""

    failure: Failure
    restart: bool
    reason: str


@dataclass(frozen=True)
class Leave:
    """Leave the rendezvous; :class:`~ftlaunch.launcher.decision.events.Left` follows."""

    generation: int
    outcome: Outcome
    exit_code: int
    reason: str


@dataclass(frozen=True)
class Exit:
    """End the agent."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class Record:
    """Write an event to ``events.jsonl``; ``say`` also tells the user in one line."""

    name: str
    generation: int | None = None
    reason: str = ""
    local_rank: int | None = None
    say: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmUp:
    """Let standbys import what the ranks of other nodes have imported."""

    lesson: Lesson


Action = Union[Join, Announce, StartWorkers, StopWorkers, Reclaim, WakeAt, Conclude, Leave, Exit, Record, WarmUp]
