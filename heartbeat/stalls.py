"""Whether silence is a stall. Pure: tracks, limits and what the kernel says in; verdicts and warnings out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.heartbeat.limits import INIT, STEP, Limit, Limits
from ftlaunch.heartbeat.tracks import Track

STOP_CONFIRM_S = 1.5
"""A stopped rank may be on its way through a debugger or a checkpoint tool; this long is no accident."""
SHARED_SECTIONS = frozenset({"checkpoint", "eval", INIT})
"""While one rank is in such a section, others may wait for it outside."""
WARN_AT = (0.5, 0.8)
_SOON_S = 1.0


@dataclass(frozen=True)
class OsState:
    """What the kernel says of one rank. ``since``: when the agent first saw this state."""

    state: str
    since: float
    traced: bool = False
    zombie_leader: bool = False
    """The main thread has ended, others go on (proc(5))."""


@dataclass(frozen=True)
class StallRules:
    """Settings beyond the limits, in seconds."""

    dstate_timeout_s: float = 60.0
    exit_barrier_timeout_s: float = 300.0
    ignore_stopped: bool = False


@dataclass(frozen=True)
class Stall:
    """One rank that makes no progress. ``kind``: silent, section, init, stopped, dstate, zombie_main, exit_barrier."""

    local_rank: int
    kind: str
    silence_s: float
    limit_s: float
    reason: str


@dataclass(frozen=True)
class Silence:
    """How long a rank has been silent against the limit that is nearest to being passed."""

    local_rank: int
    name: str
    since: float
    limit: Limit
    kind: str

    def used(self, now: float) -> float:
        """Part of the limit that is used up."""
        return (now - self.since) / self.limit.seconds if self.limit.seconds > 0 else 1.0


@dataclass(frozen=True)
class Exits:
    """Ranks that have left with 0, and when the first one did."""

    ranks: Collection[int] = ()
    first_at: float | None = None


def silences(tracks: Sequence[Track], limits: Limits, exits: Exits = Exits()) -> dict[int, Silence]:
    """The tightest silence of each rank that is watched; ranks that never show a sign of beats are not."""
    running = [track for track in tracks if track.local_rank not in exits.ranks and not track.last_words]
    shared = _shared_limit(running, limits)
    found = {}
    for track in running:
        silence = _silence(track, limits, shared)
        if silence is not None:
            found[track.local_rank] = silence
    return found


def assess(
    tracks: Sequence[Track],
    limits: Limits,
    os_states: Mapping[int, OsState],
    rules: StallRules,
    exits: Exits,
    now: float,
) -> tuple[Stall, ...]:
    """All ranks that are stalled now; the one that has been silent longest comes first."""
    stalls = []
    quiet = silences(tracks, limits, exits)
    for track in tracks:
        if track.local_rank in exits.ranks or track.last_words:
            continue
        seen = os_states.get(track.local_rank)
        if seen is not None and seen.traced:
            continue
        stall = _stall_by_os(track, seen, rules, now) or _stall_by_silence(quiet.get(track.local_rank), now)
        stall = stall or _stall_at_exit(track, rules, exits, now)
        if stall is not None:
            stalls.append(stall)
    # What the kernel says is proof; silence alone may be that of a victim.
    stalls.sort(key=lambda stall: (stall.kind not in ("stopped", "dstate", "zombie_main"), -stall.silence_s))
    return tuple(stalls)


def _shared_limit(running: Sequence[Track], limits: Limits) -> Limit | None:
    """The longest limit of a section that others may be waiting for."""
    names = {name for track in running for name, _ in track.sections if name in SHARED_SECTIONS}
    return max((limits.limit(name) for name in names), key=lambda limit: limit.seconds, default=None)


def _silence(track: Track, limits: Limits, shared: Limit | None) -> Silence | None:
    if not track.sections_known:
        return Silence(track.local_rank, "unknown", track.alive_since, limits.ceiling, "silent")
    if track.sections:
        # Every open section counts from when it was opened: an inner one never hides that an outer one is overdue.
        candidates = [
            Silence(track.local_rank, name, since, limits.limit(name), "section") for name, since in track.sections
        ]
        return min(candidates, key=lambda silence: silence.since + silence.limit.seconds)
    if not track.beaten:
        return Silence(track.local_rank, INIT, track.started_at, limits.init, "init") if track.watched else None
    limit = limits.limit(STEP)
    if shared is not None and shared.seconds > limit.seconds:
        limit = shared
    return Silence(track.local_rank, STEP, track.last_progress, limit, "silent")


def _stall_by_os(track: Track, seen: OsState | None, rules: StallRules, now: float) -> Stall | None:
    if seen is None:
        return None
    for_s = now - seen.since
    who = f"rank {track.local_rank} here (pid {track.pid})"
    if seen.state == "T" and not rules.ignore_stopped and for_s >= STOP_CONFIRM_S:
        reason = f"is stopped (state T) for {for_s:.1f} s and nobody traces it"
        return Stall(track.local_rank, "stopped", for_s, STOP_CONFIRM_S, reason)
    if seen.state == "D" and 0 < rules.dstate_timeout_s <= for_s:
        reason = f"is in uninterruptible sleep (state D) for {for_s:.0f} s, limit {rules.dstate_timeout_s:g} s"
        return Stall(track.local_rank, "dstate", for_s, rules.dstate_timeout_s, reason)
    if seen.zombie_leader and for_s >= STOP_CONFIRM_S:
        reason = f"its main thread has ended and other threads go on for {for_s:.1f} s: {who}"
        return Stall(track.local_rank, "zombie_main", for_s, STOP_CONFIRM_S, reason)
    return None


def _stall_by_silence(silence: Silence | None, now: float) -> Stall | None:
    if silence is None or now - silence.since < silence.limit.seconds:
        return None
    silence_s, limit = now - silence.since, silence.limit
    what = {
        "init": f"has not made its first step {silence_s:.1f} s after its start",
        "section": f"is in section '{silence.name}' for {silence_s:.1f} s",
        "silent": f"has made no step for {silence_s:.1f} s",
    }[silence.kind]
    reason = f"{what}, limit {limit.seconds:.1f} s ({limit.origin})"
    return Stall(silence.local_rank, silence.kind, silence_s, limit.seconds, reason)


def _stall_at_exit(track: Track, rules: StallRules, exits: Exits, now: float) -> Stall | None:
    if exits.first_at is None:
        return None
    silence_s = now - max(exits.first_at, track.last_progress)
    if silence_s < rules.exit_barrier_timeout_s:
        return None
    reason = (
        f"goes on without progress for {silence_s:.0f} s after another rank has finished, "
        f"limit {rules.exit_barrier_timeout_s:g} s (--exit-barrier-timeout)"
    )
    return Stall(track.local_rank, "exit_barrier", silence_s, rules.exit_barrier_timeout_s, reason)
