"""Who brought the generation down: the culprit told from its victims. Pure.

The first to die is only a hint: a rank that waits in a collective for one that hangs dies first, by its own timeout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ftlaunch.launcher.evidence.classify import classify
from ftlaunch.launcher.evidence.diagnosis import NOTHING_KNOWN, Confidence, Diagnosis, Kind, NodeEvidence, RankEvidence

_SIGKILLED = (-9, 137)
_ABORTED = (-6, 134)
_LATE_FACTOR = 2.0
_LATE_S = 2.0


@dataclass(frozen=True)
class Findings:
    """``cause`` first, then everybody else's end in order of death."""

    cause: Diagnosis | None = None
    others: tuple[Diagnosis, ...] = ()


def investigate(ranks: Sequence[RankEvidence], node: NodeEvidence = NOTHING_KNOWN) -> Findings:
    """Diagnose all ranks of this node and choose the cause.

    A rank with a cause of its own comes before those that only lost a peer, however early they died; among several the
    earliest. If all are victims, a rank that progressed long before the others is the suspect.
    """
    killed = sum(rank.exit_code in _SIGKILLED and not rank.stopped_by_us for rank in ranks)
    ordered = sorted(ranks, key=lambda rank: math.inf if rank.at is None else rank.at)
    found = [diagnosis for rank in ordered if (diagnosis := classify(rank, node, killed)) is not None]
    failed = [diagnosis for diagnosis in found if diagnosis.kind not in (Kind.STOPPED_BY_US, Kind.FINISHED)]
    aborted = {rank.rank for rank in ranks if rank.exit_code in _ABORTED}
    own = [diagnosis for diagnosis in failed if not diagnosis.victim]
    first = next((diagnosis for diagnosis in own if not _may_be_victim(diagnosis, aborted)), None)
    if first is None:
        first = _suspect(ranks, found, aborted) or next(iter(own), None) or next(iter(failed), None)
    if first is None:
        return Findings(None, tuple(found))
    return Findings(first, tuple(diagnosis for diagnosis in found if diagnosis.rank != first.rank))


def _may_be_victim(diagnosis: Diagnosis, aborted: Collection[int | None]) -> bool:
    """An abort without a word: a collective's watchdog ends ranks so when another one does not come."""
    return diagnosis.kind is Kind.SIGNAL and diagnosis.rank in aborted


def _suspect(
    ranks: Sequence[RankEvidence], found: Sequence[Diagnosis], aborted: Collection[int | None]
) -> Diagnosis | None:
    """All known ends follow from somebody else's: the one who progressed clearly before all others holds them up."""
    said = [diagnosis for diagnosis in found if diagnosis.kind in (Kind.COLLECTIVE_TIMEOUT, Kind.PEER_LOST)]
    waited = said or [diagnosis for diagnosis in found if _may_be_victim(diagnosis, aborted)]
    aged = sorted((rank for rank in ranks if rank.beat_age_s is not None), key=lambda rank: rank.beat_age_s or 0.0)
    if not waited or len(aged) < 2:
        return None
    oldest, next_oldest = aged[-1].beat_age_s or 0.0, aged[-2].beat_age_s or 0.0
    if oldest < _LATE_FACTOR * next_oldest or oldest - next_oldest < _LATE_S:
        return None
    culprit = aged[-1]
    blamed = ", ".join(str(diagnosis.rank) for diagnosis in waited if diagnosis.rank != culprit.rank)
    if not blamed:
        return None
    sentence = (
        f"{culprit.name} last progressed {oldest:.0f} s ago, the others at most {next_oldest:.0f} s: it held up rank "
        f"{blamed}"
    )
    hint = "--hang-timeout below the collective's own timeout would have shown where it hangs"
    confidence = Confidence.LIKELY if said else Confidence.POSSIBLE
    return Diagnosis(Kind.STALL, sentence, confidence, hint, culprit.rank)


def describe_ages(ranks: Sequence[RankEvidence]) -> str:
    """One line with everybody's last progress, for the incident; empty when nothing is known."""
    known = [rank for rank in ranks if rank.beat_age_s is not None]
    return ", ".join(f"rank {rank.rank} {rank.beat_age_s:.1f} s" for rank in sorted(known, key=lambda one: one.rank))
