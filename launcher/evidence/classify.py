"""What one rank died of: a pure function of its end and of what kernel and driver know."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from ftlaunch.launcher.evidence import patterns
from ftlaunch.launcher.evidence.diagnosis import NOTHING_KNOWN, Confidence, Diagnosis, Kind, NodeEvidence, RankEvidence
from ftlaunch.launcher.evidence.oom import OomKill
from ftlaunch.launcher.exit_codes import signal_name
from ftlaunch.launcher.health.gpus import HARDWARE_XIDS
from ftlaunch.launcher.wording import format_bytes, shortened

_SIGKILL_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)
_LOW_SHM = 0.05
_MOST_QUOTED = 200
_PROGRAM_XIDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "stopped processing",
    94: "contained ECC error",
}
_SPEAKING_SIGNALS = (-signal.SIGABRT, -signal.SIGBUS)
"""Signals before which a library says why. Others come without a word: what was said before is something else."""
_CUDA_KINDS = (Kind.CUDA_ERROR, Kind.CUDA_UNUSABLE)
_Rule = Callable[[RankEvidence, NodeEvidence, int], "Diagnosis | None"]


def classify(rank: RankEvidence, node: NodeEvidence = NOTHING_KNOWN, killed_ranks: int = 1) -> Diagnosis | None:
    """The diagnosis of one rank; ``None`` for one that lives and is not stalled.

    ``killed_ranks``: how many ranks died of a SIGKILL that was not ours; an out-of-memory kill that the kernel counted
    but did not name is certain for as many ranks as it counted.
    """
    for rule in _RULES:
        diagnosis = rule(rank, node, killed_ranks)
        if diagnosis is not None:
            return diagnosis
    return None


def _made(
    rank: RankEvidence, kind: Kind, text: str, confidence: Confidence = Confidence.CERTAIN, hint: str = ""
) -> Diagnosis:
    return Diagnosis(kind, f"{rank.name} {text}", confidence, hint, rank.rank)


def _stalled(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if not rank.stalled:
        return None
    return _made(rank, Kind.STALL, f"made no progress: {rank.stalled}", Confidence.CERTAIN)


def _stopped(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if rank.stopped_by_us:
        return _made(rank, Kind.STOPPED_BY_US, "was stopped by ftlaunch")
    return None


def _killed(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if rank.exit_code is None or rank.exit_code not in _SIGKILL_CODES:
        return None
    if node.ended_by_guardian and rank.exit_code < 0:
        text = (
            "was ended by ftlaunch's guardian: the agent of this node did not run (stopped, or stuck in the kernel) "
            "until the other nodes could go on without it"
        )
        hint = "find out what held up the agent: a SIGSTOP, a debugger, a file system that does not answer"
        return _made(rank, Kind.AGENT_STOOD_STILL, text, Confidence.CERTAIN, hint)
    # A wrapper that exits with 137 tells of its child, whose pid is not known here.
    kill = node.oom.of(rank.pid) if rank.exit_code < 0 else node.oom.in_group_of(rank.pid)
    if kill is not None:
        sure = node.oom.named(rank.pid) or killed_ranks <= kill.count
        confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
        hint = "more memory for the container, fewer data-loader workers (num_workers), a smaller batch"
        return _made(rank, Kind.OUT_OF_MEMORY, describe_oom(kill), confidence, hint)
    if rank.pid in node.oom.groups:
        text = "was killed with SIGKILL by somebody else: not by ftlaunch, and not for lack of memory"
        confidence = Confidence.CERTAIN
    else:
        text = "was killed with SIGKILL, not by ftlaunch; no memory control group is visible that would tell why"
        confidence = Confidence.POSSIBLE
    hint = "a container runtime, a batch system, an out-of-memory daemon (systemd-oomd, earlyoom) or a person did it"
    return _made(rank, Kind.KILLED_BY_OTHERS, text, confidence, hint)


def describe_oom(kill: OomKill) -> str:
    """Completes "rank 3 (pid 4711) …"."""
    held = f", it held {format_bytes(kill.resident)}" if kill.resident else ""
    if kill.whole_machine:
        return f"was OOM-killed by the kernel: the machine, or a group above, ran out of memory{held}"
    if kill.limit is None:
        # The kernel log names the process, but it had moved to a group of its own too late to be followed.
        return f"was OOM-killed by the kernel: a memory control group that it was in ran into its limit{held}"
    peak = "" if kill.peak is None else f", peak {format_bytes(kill.peak)}"
    return f"was OOM-killed by the kernel: cgroup limit {format_bytes(kill.limit)}{peak}"


def _gpu(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    """An error that the driver reported for this rank's GPU, for a rank that did not just exit in order."""
    if rank.exit_code is None or (rank.exit_code >= 0 and not _says(rank, _CUDA_KINDS)):
        return None
    for event in node.xids:
        if rank.gpu_uuid and event.uuid != rank.gpu_uuid:
            continue
        meaning = HARDWARE_XIDS.get(event.xid) or _PROGRAM_XIDS.get(event.xid)
        if meaning is None:
            continue
        confidence = Confidence.CERTAIN if rank.gpu_uuid else Confidence.LIKELY
        text = f"lost its GPU: the driver reported Xid {event.xid} ({meaning}) for GPU {event.index} ({event.uuid})"
        if event.xid in _PROGRAM_XIDS:
            text = f"had a GPU error: Xid {event.xid} ({meaning}) on GPU {event.index} ({event.uuid})"
        hint = "have the node looked at: the GPU needs a reset" if event.xid in HARDWARE_XIDS else ""
        return _made(rank, Kind.GPU_ERROR, text, confidence, hint)
    return None


def _says(rank: RankEvidence, kinds: Sequence[Kind]) -> bool:
    pattern = patterns.match(_text(rank))
    return pattern is not None and pattern.kind in kinds


def _text(rank: RankEvidence) -> str:
    """What it said: the exception alone where there is one, since the output holds older troubles, too."""
    raised = rank.exception and rank.exception != "SystemExit"
    return f"{rank.exception}: {rank.message}" if raised else rank.stderr


def _bus_error(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    """A write to a shared mapping that has no room behind it ends in SIGBUS (mmap(2))."""
    if rank.exit_code not in (-signal.SIGBUS, 128 + signal.SIGBUS):
        return None
    pattern = next(pattern for pattern in patterns.PATTERNS if pattern.kind is Kind.SHARED_MEMORY)
    full = node.shm_free_fraction is not None and node.shm_free_fraction < _LOW_SHM
    confidence = Confidence.LIKELY if full else Confidence.POSSIBLE
    left = f", {node.shm_free_fraction:.0%} of /dev/shm is free" if node.shm_free_fraction is not None else ""
    text = f"died of SIGBUS, as a process does that writes to a full /dev/shm{left}"
    return _made(rank, Kind.SHARED_MEMORY, text, confidence, pattern.hint)


def _pattern(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if rank.exit_code == 0 or not _may_speak(rank):
        return None
    said = _text(rank)
    pattern = patterns.match(said)
    if pattern is None:
        return None
    kill = node.oom.in_group_of(rank.pid)
    if pattern.kind is Kind.LOADER_KILLED and kill is not None:
        return _made(rank, Kind.OUT_OF_MEMORY, f"lost a data-loader worker: it {describe_oom(kill)}", hint=pattern.hint)
    quoted = _quote(said, pattern)
    confidence = Confidence.CERTAIN if rank.exception else Confidence.LIKELY
    return _made(rank, pattern.kind, f"{pattern.text}: {quoted}", confidence, pattern.hint)


def _may_speak(rank: RankEvidence) -> bool:
    if rank.exception:
        return True
    return rank.exit_code is not None and (rank.exit_code > 0 or rank.exit_code in _SPEAKING_SIGNALS)


def _quote(said: str, pattern: patterns.Pattern) -> str:
    """The line that says it."""
    found = pattern.expression.search(said)
    start = 0 if found is None else said.rfind("\n", 0, found.start()) + 1
    return shortened(said[start:].split("\n", 1)[0], _MOST_QUOTED)


def _exception(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if not rank.exception or rank.exception == "SystemExit":
        return None
    where = f" at {rank.place}" if rank.place else ""
    message = f": {shortened(rank.message.strip().split(chr(10), 1)[0], _MOST_QUOTED)}" if rank.message.strip() else ""
    return _made(rank, Kind.EXCEPTION, f"failed with {rank.exception}{message}{where}")


def _signal(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if rank.exit_code is None or rank.exit_code >= 0:
        return None
    where = node.kernel_faults.get(rank.pid)
    text = f"died of {signal_name(-rank.exit_code)}" + (f" in {where}" if where else "")
    return _made(rank, Kind.SIGNAL, text)


def _exit(rank: RankEvidence, node: NodeEvidence, killed_ranks: int) -> Diagnosis | None:
    if rank.exit_code is None:
        return None
    if rank.exit_code == 0:
        return _made(rank, Kind.FINISHED, "finished with code 0")
    hint = {
        126: "the command was found but can't be executed",
        127: "the command was not found",
    }.get(rank.exit_code, "")
    said = f": {rank.message}" if rank.exception == "SystemExit" and rank.message.strip() else ""
    return _made(rank, Kind.EXIT, f"exited with code {rank.exit_code}{shortened(said, _MOST_QUOTED)}", hint=hint)


_RULES: tuple[_Rule, ...] = (
    _stalled,
    _stopped,
    _killed,
    _gpu,
    _bus_error,
    _pattern,
    _exception,
    _signal,
    _exit,
)
