"""From what the agent knows of a failed generation to verdicts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.launcher.decision.events import Failure, FailureKind
from ftlaunch.launcher.decision.state import WorkerState
from ftlaunch.launcher.evidence.classify import classify
from ftlaunch.launcher.evidence.culprit import describe_ages, investigate
from ftlaunch.launcher.evidence.diagnosis import Diagnosis, NodeEvidence, RankEvidence
from ftlaunch.launcher.journal.incident import Diagnosed

_PLAIN = frozenset({"exit", "exception", "signal", "stall", "stopped_by_us", "finished"})


@dataclass(frozen=True)
class Case:
    """A failed generation as far as it is known. ``killed`` and ``asked``: pids that got a signal from us.

    ``ages``: by local rank, seconds between its last progress and the failure. ``gpus``: by pid, its device's UUID.
    """

    failure: Failure
    workers: Mapping[int, WorkerState]
    first_rank: int = 0
    killed: Collection[int] = ()
    asked: Collection[int] = ()
    ages: Mapping[int, float] = field(default_factory=dict)
    gpus: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """``verdict``: who brought the generation down. ``progress``: when each rank made progress last, for people."""

    verdict: Diagnosed | None = None
    others: tuple[Diagnosed, ...] = ()
    progress: str = ""


Tail = Callable[[int], Sequence[bytes]]
"""The last lines that a local rank wrote to stderr."""


def judge_first(case: Case, node: NodeEvidence, tail: Tail) -> Diagnosed | None:
    """The verdict on the rank that failed first; ``None`` when no rank of this node did."""
    local_rank = case.failure.local_rank
    worker = case.workers.get(local_rank) if local_rank is not None else None
    if worker is None or not worker.pid:
        return None
    diagnosis = classify(rank_evidence(case, worker, tail), node)
    return None if diagnosis is None else verdict_of(diagnosis)


def judge_all(case: Case, node: NodeEvidence, tail: Tail) -> Answer:
    """The verdicts on all ranks of this node, the culprit told from its victims. A few ms."""
    ranks = [rank_evidence(case, worker, tail) for worker in case.workers.values() if worker.pid]
    findings = investigate(ranks, node)
    return Answer(
        None if findings.cause is None else verdict_of(findings.cause),
        tuple(verdict_of(diagnosis) for diagnosis in findings.others),
        describe_ages(ranks),
    )


def rank_evidence(case: Case, worker: WorkerState, tail: Tail) -> RankEvidence:
    """What is known of one rank."""
    failure, first = case.failure, worker.local_rank == case.failure.local_rank
    words = worker.words or (failure.words if first else None)
    said = words or LastWords()
    ours = worker.pid in case.asked or (worker.pid in case.killed and worker.exit_code == -9)
    return RankEvidence(
        rank=case.first_rank + worker.local_rank,
        pid=worker.pid,
        exit_code=_own_code(failure, words, worker.exit_code, ours) if first else worker.exit_code,
        at=failure.at if first else worker.exited_at,
        stopped_by_us=ours and not first,
        exception=said.exception,
        message=said.message,
        place=said.place,
        stderr=b"\n".join(tail(worker.local_rank)).decode(errors="replace"),
        stalled=failure.reason if first and failure.kind is FailureKind.STALL else "",
        beat_age_s=case.ages.get(worker.local_rank),
        gpu_uuid=case.gpus.get(worker.pid, ""),
    )


def _own_code(failure: Failure, words: LastWords | None, exit_code: int | None, ours: bool) -> int | None:
    """The code of the rank that failed first; one that we killed on its way out has the code that it announced."""
    if failure.kind is not FailureKind.STALL and (exit_code is None or ours):
        return words.exit_code if words is not None else failure.exit_code
    return exit_code


def verdict_of(diagnosis: Diagnosis) -> Diagnosed:
    """As it is kept in incidents."""
    return Diagnosed(
        kind=diagnosis.kind.value,
        sentence=diagnosis.sentence,
        confidence=diagnosis.confidence.value,
        hint=diagnosis.hint,
        rank=diagnosis.rank,
    )


def says_more(verdict: Diagnosed) -> bool:
    """Whether it tells more than the failure's own reason."""
    return verdict.kind not in _PLAIN
