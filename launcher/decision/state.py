"""What the agent knows: one frozen value, replaced by every decision."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.launcher.decision.actions import Manner
from ftlaunch.launcher.decision.events import Failure
from ftlaunch.launcher.decision.generations import GenerationRecord
from ftlaunch.launcher.decision.policy import Verdict
from ftlaunch.rendezvous.interface import Outcome, World


class Phase(enum.Enum):
    """Where the agent is. See docs/architecture.md for the picture."""

    JOINING = "joining"
    """Waiting for the rendezvous; no worker of ours exists. Entered at the start and after a generation was cleared."""
    STARTING = "starting"
    """The generation is agreed on, its workers are being started."""
    RUNNING = "running"
    """All ranks of this node were started."""
    STOPPING = "stopping"
    """Workers are being stopped: the generation failed, or the job ends."""
    RECLAIMING = "reclaiming"
    """No worker is left; waiting for the GPUs to be free."""
    LEAVING = "leaving"
    """Telling the rendezvous, and waiting for the other nodes when all ranks here succeeded."""
    DONE = "done"
    """Terminal: the exit code is known."""


class WorkerStatus(enum.Enum):
    """What is known of one rank's process."""

    RUNNING = "running"
    FAILING = "failing"
    """Said its last words, not yet dead."""
    EXITED = "exited"


@dataclass(frozen=True)
class WorkerState:
    """One rank of this node in the current generation."""

    local_rank: int
    pid: int = 0
    status: WorkerStatus = WorkerStatus.RUNNING
    exit_code: int | None = None
    exited_at: float | None = None
    words: LastWords | None = None


@dataclass(frozen=True)
class Recovery:
    """What the next generation still waits for. Stopping, reclaiming and joining run side by side."""

    stopped: bool = False
    reclaimed: bool = False
    world: World | None = None
    counts: bool = True
    """Whether the restart counts against the budget."""
    not_before: float = 0.0
    delayed: bool = False


class Origin(enum.Enum):
    """Where an ending comes from."""

    HERE = "here"
    """Asked for on this node, or its ranks have finished."""
    JUDGED = "judged"
    """The restart policy's verdict, which another cause may turn."""
    CLOSED = "closed"
    """The job is closed for all nodes already."""


@dataclass(frozen=True)
class Ending:
    """The job (or this agent's part in it) is to end; ``exit_code`` ``None`` means: the first failed rank's own."""

    outcome: Outcome
    exit_code: int | None
    reason: str
    clean_exit_code: int | None = None
    """Taken instead when all ranks ended with 0 while they were being stopped."""
    origin: Origin = Origin.HERE

    @property
    def of_the_job(self) -> bool:
        """Whether the whole job ends with it, not this node's part alone."""
        return self.outcome is Outcome.FAILED or self.origin is Origin.CLOSED


@dataclass(frozen=True)
class State:
    """The whole of it. ``generation`` is -1 before the first one."""

    slots: int
    preempt_signals: frozenset[int] = frozenset()
    """Signals after which the job is never done, only interrupted: it is to be queued again."""
    joins_late: bool = False
    """Join only when the old generation is gone: what this node offers depends on what its ranks have written."""
    phase: Phase = Phase.JOINING
    generation: int = -1
    world: World | None = None
    workers: Mapping[int, WorkerState] = field(default_factory=dict)
    failure: Failure | None = None
    recovery: Recovery | None = None
    parked: bool = False
    """The job is complete without this node, which waits."""
    ending: Ending | None = None
    manner: Manner | None = None
    """How workers are being stopped, once they are."""
    signals: int = 0
    grow: str = "immediately"
    growth: str = ""
    """Why the world is to grow at the next checkpoint; empty when nobody waits for that."""
    spent_before: int = 0
    """Restarts that the job had had when this agent joined it."""
    beaten: bool = False
    progress: Progress = field(default_factory=Progress)
    """How far the generation came, as far as was told."""
    started_at: float = 0.0
    """When the generation's workers were started."""
    history: tuple[GenerationRecord, ...] = ()

    def with_worker(self, worker: WorkerState) -> State:
        """The same with one rank replaced."""
        return replace(self, workers={**self.workers, worker.local_rank: worker})

    def with_pids(self, pids: Sequence[int]) -> State:
        """The same once these ranks run, by local rank."""
        started = {number: replace(self.workers[number], pid=pid) for number, pid in enumerate(pids)}
        return replace(self, workers={**self.workers, **started})

    @property
    def all_exited(self) -> bool:
        """All ranks of the generation are dead."""
        return bool(self.workers) and all(w.status is WorkerStatus.EXITED for w in self.workers.values())

    @property
    def all_succeeded(self) -> bool:
        """All ranks of the generation exited with 0."""
        return self.all_exited and all(w.exit_code == 0 for w in self.workers.values())


Judge = Callable[[tuple[GenerationRecord, ...], float], Verdict]
"""The restart policy with its configuration bound: (history including the failed generation, now) -> verdict."""
