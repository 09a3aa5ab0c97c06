"""What can happen to the agent. Rendezvous events (:mod:`ftlaunch.rendezvous.interface`) are handled beside these.

Every event of a worker carries the generation it speaks of; :func:`.decide.decide` drops those of an older one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Union

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.rendezvous.interface import RendezvousEvent


@dataclass(frozen=True)
class ProgressNoted:
    """How far this node's ranks came, told before news of other nodes that may end the generation."""

    generation: int
    progress: Progress


@dataclass(frozen=True)
class Started:
    """The agent is up."""


@dataclass(frozen=True)
class WorkersStarted:
    """All ranks of the generation are running. ``pids`` by local rank; ``warm`` ones came from standbys."""

    generation: int
    pids: tuple[int, ...]
    warm: int = 0


@dataclass(frozen=True)
class SpawnFailed:
    """A rank could not be started at all. ``pids`` of those that were, by local rank."""

    generation: int
    local_rank: int
    reason: str
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class WorkerExited:
    """The kernel reported a death. ``exit_code`` is negative for a signal; ``at`` is CLOCK_MONOTONIC seconds."""

    generation: int
    local_rank: int
    exit_code: int
    at: float
    progress: Progress = field(default_factory=Progress)
    own: bool = True
    """It died of something else than a signal of ours."""


@dataclass(frozen=True)
class WorkerFailing:
    """A rank said its last words; its death follows, but nobody needs to wait for it."""

    generation: int
    local_rank: int
    words: LastWords
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class WorkerStalled:
    """A rank lives but makes no progress. ``kind`` as in :mod:`ftlaunch.heartbeat.watching.stalls`."""

    generation: int
    local_rank: int
    kind: str
    reason: str
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class FirstBeat:
    """The first beat of a generation: training has resumed."""

    generation: int


@dataclass(frozen=True)
class CheckpointSaved:
    """A rank here has saved a complete checkpoint: a restart now loses nothing."""

    generation: int


@dataclass(frozen=True)
class WorkersGone:
    """No process of the generation is left."""

    generation: int


@dataclass(frozen=True)
class WorkersUnkillable:
    """Something of the generation cannot be killed; ``reason`` names pid, state and what it waits for."""

    generation: int
    reason: str


@dataclass(frozen=True)
class Reclaimed:
    """The GPUs of this node are free again, or there is none."""

    generation: int


@dataclass(frozen=True)
class NodeUnhealthy:
    """A GPU was not reclaimed or a health check failed: this node must not carry a rank again."""

    generation: int
    reason: str


@dataclass(frozen=True)
class SignalReceived:
    """Somebody asked the agent to end."""

    signum: int


@dataclass(frozen=True)
class RestartRequested:
    """``ftctl restart`` or the script's ``request_restart``."""

    generation: int
    reason: str
    local_rank: int | None = None
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class StopRequested:
    """``ftctl stop`` or the script's ``request_stop``. ``everywhere``: on all nodes, spares go as well."""

    generation: int
    reason: str
    local_rank: int | None = None
    everywhere: bool = False


@dataclass(frozen=True)
class BackoffOver:
    """The delay before a restart without progress has passed."""

    generation: int


@dataclass(frozen=True)
class Left:
    """The rendezvous was left; ``exit_code`` is the job's."""

    exit_code: int
    reason: str = ""


AgentEvent = Union[
    Started,
    WorkersStarted,
    SpawnFailed,
    WorkerExited,
    WorkerFailing,
    WorkerStalled,
    FirstBeat,
    CheckpointSaved,
    ProgressNoted,
    WorkersGone,
    WorkersUnkillable,
    Reclaimed,
    NodeUnhealthy,
    SignalReceived,
    RestartRequested,
    StopRequested,
    BackoffOver,
    Left,
]
Event = Union[AgentEvent, RendezvousEvent]


class FailureKind(enum.Enum):
    """What ended a generation, as the agent saw it."""

    EXIT = "exit"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    STALL = "stall"
    SPAWN = "spawn"
    PEER = "peer"
    REQUEST = "request"
    MEMBERSHIP = "membership"
    LEASE = "lease"


@dataclass(frozen=True)
class Failure:
    """The first cause of a generation's end, with what was known at that moment."""

    kind: FailureKind
    generation: int
    at: float
    reason: str
    local_rank: int | None = None
    exit_code: int | None = None
    words: LastWords | None = None
    progress: Progress = field(default_factory=Progress)

    @property
    def step(self) -> int | None:
        """The failed rank's own step where it said it, otherwise the highest of this node's ranks."""
        return self.words.step if self.words is not None and self.words.step is not None else self.progress.step

    @property
    def own(self) -> bool:
        """Whether a rank of this node failed, as opposed to a peer, a request or a signal to the agent."""
        return self.kind in _OWN_FAILURES


_OWN_FAILURES = frozenset(
    {FailureKind.EXIT, FailureKind.SIGNAL, FailureKind.EXCEPTION, FailureKind.STALL, FailureKind.SPAWN}
)
