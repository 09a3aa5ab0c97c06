"""What the heartbeat side knows of the ranks, in the shape that ``ftctl status`` shows. Pure."""

from __future__ import annotations

import math
from itertools import pairwise

from ftlaunch.heartbeat.watching.limits import Limits
from ftlaunch.heartbeat.watching.stalls import first_due
from ftlaunch.heartbeat.watching.tracks import Track, Tracks
from ftlaunch.heartbeat.watching.watch import Watch
from ftlaunch.launcher.views.overview import Heard, LimitFacts, RankFacts

_ALL_TOLD_PER_S = 9.0


def heard_from(watch: Watch, now: float) -> Heard:
    """Everything, by local rank."""
    reported = watch.stragglers.reported
    lags = {rank: found.lag.reason for rank, found in reported.items() if found.lag is not None}
    tracks, limits = watch.tracks, watch.limits
    ranks = {
        track.local_rank: _rank_facts(track, tracks, limits, now, lags.get(track.local_rank, ""))
        for track in tracks.ranks
    }
    rows = (
        LimitFacts(row.section, _finite(row.limit.seconds), row.limit.source.value, row.longest_s, row.gaps)
        for row in limits.table()
    )
    return Heard(ranks, tuple(rows))


def _rank_facts(track: Track, tracks: Tracks, limits: Limits, now: float, straggles: str) -> RankFacts:
    due = first_due(track, tracks, limits)
    total = track.info.get("total")
    return RankFacts(
        local_rank=track.local_rank,
        phase=track.phase.name.lower(),
        sections=tuple(section.name for section in track.sections or ()),
        step=track.step,
        ticks=track.ticks,
        total=int(total) if isinstance(total, (int, float)) and 0 < total < 1 << 63 else None,
        step_rate=_rate(track),
        beaten=track.beats > 0,
        beat_age_s=now - track.progress_at if track.alive else None,
        silence_s=None if due is None else now - due.since,
        limit_s=None if due is None else _finite(due.limit.seconds),
        limit_name="" if due is None else due.section or "unknown",
        limit_origin="" if due is None else due.limit.source.value,
        straggles=straggles,
    )


def _rate(track: Track) -> float | None:
    """Steps per second over the last ones, by their numbers: not all of them are told.

    ``None`` where they have none and come about as often as beats are told at most.
    """
    heard = list(track.series)
    if len(heard) < 2 or heard[-1][1] <= heard[0][1]:
        return None
    # A number that falls is that of a new epoch.
    steps = sum(after - before if after >= before else 1 for (before, _), (after, _) in pairwise(heard))
    rate = steps * 1e9 / (heard[-1][1] - heard[0][1])
    numbered = track.step is not None or track.ticks > 0
    return rate if rate and (numbered or rate < _ALL_TOLD_PER_S) else None


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds
