"""What ended generations tell: how far each came, whether it failed by its own doing. Pure; :mod:`.policy` decides."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_PORT_RETRIES = 3
PASSING = frozenset(
    {
        "ConnectionError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "BrokenPipeError",
        "TimeoutError",
        "DistNetworkError",
        "DistStoreError",
        "DistBackendError",
    }
)
"""Failures of the network or of another rank: the same one twice, or one at the start, proves nothing."""
CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11})
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: the process did it to itself. Others were sent, by the OOM killer say."""
NEUTRAL_KINDS = frozenset({"membership", "lease"})
"""A node came or went: no failure of the program."""


@dataclass(frozen=True)
class GenerationRecord:
    """One ended generation, as far as the policy needs to know it. ``None`` and 0 mean: not known, none."""

    generation: int
    kind: str
    """``exit``, ``signal``, ``exception``, ``stall``, ``spawn``, ``peer``, ``request``, ``membership`` or ``lease``.
    Of a ``request`` the reason is ``message``."""
    ended_at: float
    """On the clock of ``now``."""
    exit_code: int | None = None
    """The first failed worker's, negative for a signal; ``None`` when no worker of this node failed."""
    exception: str = ""
    place: str = ""
    message: str = ""
    error_number: int | None = None
    beaten: bool = False
    step: int | None = None
    """Highest step that the script told."""
    ticks: int = 0
    """Most optimizer steps that any rank made, counted by the hooks."""
    failed_step: int | None = None
    """The failed rank's own, from its last words: others may be ahead of it."""
    failed_ticks: int = 0
    """The same of its optimizer steps."""
    checkpoints: int = 0
    """Complete checkpoints heard of."""
    checkpoint_step: int | None = None
    """Greatest step of a complete checkpoint known when the generation ended."""
    resume_from: str | None = None
    """The checkpoint it was told to load."""
    resume_step: int | None = None
    uptime_s: float | None = None
    """How long its workers lived."""

    @property
    def failed_at(self) -> tuple[int | None, int]:
        """Step and optimizer steps of the rank that failed, if it told any; otherwise how far any rank came."""
        told = self.failed_step is not None or self.failed_ticks > 0
        return (self.failed_step, self.failed_ticks) if told else (self.step, self.ticks)


@dataclass(frozen=True)
class Judged:
    """A generation with what follows from those before it. ``progress`` says how far it came, empty for nowhere."""

    record: GenerationRecord
    progress: str
    port_taken: bool
    """It found its port taken at start-up, and such a retry is still free."""

    @property
    def neutral(self) -> bool:
        """Ended through no fault of the program."""
        return self.record.kind in NEUTRAL_KINDS or self.port_taken

    @property
    def counts(self) -> bool:
        """Whether the restart after it counts. A restart that the script asked for is free if it got somewhere."""
        return not self.neutral and not (self.record.kind == "request" and self.progress)

    @property
    def lived(self) -> bool:
        """It gave any sign of work."""
        record = self.record
        return record.beaten or record.step is not None or record.ticks > 0 or record.checkpoints > 0

    @property
    def died_loading(self) -> bool:
        """It was given a checkpoint and died by its own doing before its first step."""
        return self.record.resume_from is not None and died_before_a_step(self.record) and not self.port_taken


@dataclass(frozen=True)
class Marks:
    """How far a job ever came; -1 for nowhere."""

    step: int = -1
    saved: int = -1
    ticks: int = 0
    told: bool = False
    """The script tells its steps or saves so that we notice: optimizer steps then prove nothing."""

    def beyond(self, record: GenerationRecord) -> Marks:
        """The marks after one more generation."""
        return Marks(
            step=max(self.step, -1 if record.step is None else record.step),
            saved=max(
                self.saved,
                -1 if record.checkpoint_step is None else record.checkpoint_step,
                -1 if record.resume_step is None else record.resume_step,
            ),
            ticks=max(self.ticks, record.ticks),
            told=self.told or record.step is not None or record.checkpoints > 0 or record.checkpoint_step is not None,
        )

    def passed_by(self, record: GenerationRecord) -> str:
        """How the generation came further than these marks; empty when it did not."""
        if record.step is not None and record.step > self.step:
            return f"it reached step {record.step}" + (f", before {self.step}" if self.step >= 0 else "")
        if record.checkpoint_step is not None and record.checkpoint_step > self.saved:
            return f"it saved step {record.checkpoint_step}" + (f", before {self.saved}" if self.saved >= 0 else "")
        if record.checkpoint_step is None and record.checkpoints > 0:
            return f"it saved {record.checkpoints} checkpoint{plural(record.checkpoints)}"
        if record.resume_step is not None and record.resume_step > self.saved and not died_before_a_step(record):
            # Who saves where no hook looks is known by what there is to resume from.
            return f"it went on after step {record.resume_step}" + (f", before {self.saved}" if self.saved >= 0 else "")
        if not self.beyond(record).told and record.ticks > self.ticks:
            before = f", before {self.ticks}" if self.ticks else ""
            return f"it made {record.ticks} optimizer step{plural(record.ticks)}{before}"
        return ""


def died_before_a_step(record: GenerationRecord) -> bool:
    """By its own doing, not of the network's."""
    stepped = record.step is not None or record.ticks > 0 or record.checkpoints > 0
    crashed = record.kind == "signal" and -(record.exit_code or 0) in CRASH_SIGNALS
    own = crashed or record.kind in ("exit", "exception", "stall")
    return own and not stepped and not is_passing(record)


def replay(history: Sequence[GenerationRecord]) -> tuple[Judged, ...]:
    """Judge every generation by those before it. Takes time in proportion to the length of the history."""
    judged: list[Judged] = []
    start = history[0].resume_step if history else None
    marks = Marks() if start is None else Marks(step=start, saved=start)
    retries = 0
    for record in history:
        port_taken = _found_port_taken(record) and retries < MAX_PORT_RETRIES
        retries = retries + 1 if port_taken else 0
        judged.append(Judged(record, marks.passed_by(record), port_taken))
        marks = marks.beyond(record)
    return tuple(judged)


def poisoned_paths(history: Sequence[GenerationRecord]) -> frozenset[str]:
    """Checkpoints not to resume from: those that a generation died of while it loaded them.

    One at a time: if the one before it fails as well the checkpoint was not the cause. Taken back once a later
    generation saved at that step again.
    """
    poisoned: dict[str, int | None] = {}
    fallen_back = False
    for one in replay(history):
        record = one.record
        if one.died_loading and record.resume_from is not None:
            if not fallen_back:
                poisoned[record.resume_from] = record.resume_step
            fallen_back = True
        elif one.lived:
            fallen_back = False
            poisoned = {path: step for path, step in poisoned.items() if not _saved_again(record, step)}
    return frozenset(poisoned)


def _saved_again(record: GenerationRecord, step: int | None) -> bool:
    if record.checkpoints == 0 and record.checkpoint_step is None:
        return False
    return step is None or record.checkpoint_step is None or record.checkpoint_step >= step


def _found_port_taken(record: GenerationRecord) -> bool:
    if record.beaten or record.step is not None or record.ticks > 0 or record.kind not in ("exit", "exception"):
        return False
    text = record.message.lower()
    return record.error_number == errno.EADDRINUSE or "eaddrinuse" in text or "address already in use" in text


def exception_name(record: GenerationRecord) -> str:
    """The exception's class without its module."""
    return record.exception.rpartition(".")[2]


def is_passing(record: GenerationRecord) -> bool:
    """Whether it failed by something that may well be gone: see :data:`PASSING`."""
    return exception_name(record) in PASSING


def run_length(judged: Sequence[Judged], holds: Callable[[Judged], bool]) -> int:
    """For how many of the last ones in a row something holds."""
    length = 0
    for one in reversed(judged):
        if not holds(one):
            break
        length += 1
    return length


def plural(count: int) -> str:
    """The ending of a counted word."""
    return "" if count == 1 else "s"
