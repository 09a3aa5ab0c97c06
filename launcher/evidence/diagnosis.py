"""What is known of a rank's end, and what was made of it. Plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ftlaunch.launcher.evidence.oom import OomFacts
from ftlaunch.launcher.gpu.model import XidEvent


class Kind(str, enum.Enum):
    """What a rank died of."""

    OUT_OF_MEMORY = "out_of_memory"
    CUDA_OUT_OF_MEMORY = "cuda_out_of_memory"
    SHARED_MEMORY = "shared_memory_full"
    DISK_FULL = "disk_full"
    OPEN_FILES = "too_many_open_files"
    PORT_IN_USE = "port_in_use"
    NOT_EXECUTABLE = "not_executable"
    GPU_ERROR = "gpu_error"
    CUDA_ERROR = "cuda_error"
    CUDA_UNUSABLE = "cuda_unusable"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    PEER_LOST = "peer_lost"
    LOADER_KILLED = "loader_killed"
    STALL = "stall"
    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    KILLED_BY_OTHERS = "killed_by_others"
    AGENT_STOOD_STILL = "agent_stood_still"
    """The guardian ended it, before the other nodes could go on without this one."""
    STOPPED_BY_US = "stopped_by_us"
    FINISHED = "finished"
    """It ended with code 0."""


VICTIM_KINDS = frozenset({Kind.COLLECTIVE_TIMEOUT, Kind.PEER_LOST, Kind.STOPPED_BY_US})
"""What a rank dies of because of another one."""


class Confidence(str, enum.Enum):
    """How sure a diagnosis is."""

    CERTAIN = "certain"
    """The kernel, the driver or the program itself says so."""
    LIKELY = "likely"
    """The facts fit, and nothing else that is known fits better."""
    POSSIBLE = "possible"
    """The facts do not tell more."""


@dataclass(frozen=True)
class Diagnosis:
    """One verdict in one line. ``hint``: what would have helped, a flag where there is one; may be empty."""

    kind: Kind
    sentence: str
    confidence: Confidence
    hint: str = ""
    rank: int | None = None

    @property
    def victim(self) -> bool:
        """Whether such an end follows from another rank's."""
        return self.kind in VICTIM_KINDS


@dataclass(frozen=True)
class RankEvidence:
    """One rank of the failed generation. ``exit_code`` is negative for a signal, ``None`` while it lives."""

    rank: int
    pid: int
    exit_code: int | None = None
    at: float | None = None
    """CLOCK_MONOTONIC seconds of its death, or of its last words when they came first."""
    stopped_by_us: bool = False
    exception: str = ""
    message: str = ""
    place: str = ""
    stderr: str = ""
    """The last lines it wrote."""
    stalled: str = ""
    """Why it was taken for stalled; empty if it was not."""
    beat_age_s: float | None = None
    """Seconds between its last progress and the failure."""
    gpu_uuid: str = ""

    @property
    def name(self) -> str:
        """As it is called in sentences."""
        return f"rank {self.rank} (pid {self.pid})"


@dataclass(frozen=True)
class NodeEvidence:
    """What the node itself knows of the time of the failure."""

    oom: OomFacts = field(default_factory=OomFacts)
    xids: Sequence[XidEvent] = ()
    kernel_faults: Mapping[int, str] = field(default_factory=dict)
    """By pid: the file whose code caused a segmentation fault."""
    shm_free_fraction: float | None = None
    ended_by_guardian: bool = False
    """It has ended the ranks because the agent did not run."""


NOTHING_KNOWN = NodeEvidence()
