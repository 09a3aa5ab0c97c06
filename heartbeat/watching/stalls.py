"""Which ranks are stalled now, and when to look again. Pure: (tracks, limits, what the kernel says, now) -> assessment.

The rules, in the order in which they are tried:

* The kernel tells some stalls by itself, in every phase and for programs that never speak: stopped (T) for a second,
  and not by a tracer; uninterruptible sleep (D) in one place for ``--dstate-timeout``; a main thread that has ended
  while others live on.
* While any rank of the node is traced, silence is held against nobody: the others wait for it.
* A rank inside sections is judged by each of them: a silence counts from when the section was entered or from the last
  step, so what happens in an inner section does not help the outer one.
* Outside of sections it is judged by ``step``, but not while another rank is inside a section: it may wait for that
  one, whose own limit holds.
* A limit that was learnt, not given, ends nobody as long as some rank works: its main thread goes to sleep and wakes
  up, touches new memory, or its children compute. What held before anything was learnt holds all the same.
* Before its first step a rank is judged only if it showed that it means to make one: an optimizer, ``init()``, a step
  in an earlier generation; or torch was imported and ``--init-timeout`` was given. A program without any such sign may
  be an evaluation of many hours; this is said once.
* A rank whose program was below another one (``--no-python``) and has ended is judged by its state only.
* With several nodes a stall stands only when the others were asked (:mod:`.elsewhere`): what holds for other ranks of
  this node holds for theirs.
* Once a rank has ended with 0, no steps are expected of the others, only that they show progress or work:
  ``--exit-barrier-timeout``; not while one is inside a section, whose own limit holds if it is longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftlaunch.heartbeat.watching import procstate
from ftlaunch.heartbeat.watching import verdicts as v
from ftlaunch.heartbeat.watching.limits import CHECKPOINT, DEFAULT_INIT_TIMEOUT_S, INIT, STEP, Limit, Limits, Source
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.tracks import Look, Phase, Track, Tracks
from ftlaunch.heartbeat.watching.verdicts import Assessment, Notice, Stall, StallWarning, for_people, rank_names

STOP_CONFIRM_S = 1.0
ZOMBIE_CONFIRM_S = 2.0
DYING_CONFIRM_S = 30.0
"""An ending process is a zombie in front while its last thread still gives back the memory: 65 ms per GiB."""
LOOK_S = 10.0
"""A rank that is silent is looked at so often; one that speaks, never."""
PERCENTS = (50, 80)
_NEWS = 1.2
"""A silence is worth a warning when it is so much longer than any before."""
_TOGETHER = 0.9
_SOON_S = 0.01
_WORKS_SWITCHES_PER_S = 1.0
_WORKS_FAULTS_PER_S = 20.0
_WORKS_CHILDREN = 0.2


class _Findings:
    """An assessment in the making."""

    def __init__(self, tracks: Tracks, limits: Limits, states: Mapping[int, ProcState], now: float) -> None:
        self.tracks = tracks
        self.limits = limits
        self.states = states
        self.now = now
        self.stalls: list[Stall] = []
        self.warnings: list[StallWarning] = []
        self.notices: list[Notice] = []
        self.deadline = math.inf

    def at(self, deadline: float) -> None:
        """Look again then, or in a moment if that is past."""
        self.deadline = min(self.deadline, max(deadline, self.now + _SOON_S))

    def name(self, local_ranks: Sequence[int]) -> str:
        """With the numbers of the whole job."""
        return rank_names(self.tracks.first_rank + rank for rank in local_ranks)

    def say(self, track: Track, kind: str, what: str) -> None:
        """A notice, unless it was given before."""
        if kind not in track.said:
            track.said.add(kind)
            self.notices.append(Notice(kind, (track.local_rank,), f"{self.name([track.local_rank])} {what}"))

    def done(self) -> Assessment:
        return Assessment(tuple(self.stalls), tuple(self.warnings), tuple(self.notices), self.deadline)


class Due(NamedTuple):
    """A silence that counts: of which section, since when, and how long it may last."""

    section: str
    since: float
    limit: Limit


def look_at_all(tracks: Tracks, states: Mapping[int, ProcState], now: float) -> None:
    """Note what everybody does now, to compare with later."""
    for track in tracks.alive:
        state = states.get(track.local_rank)
        track.quiet_look = None if state is None else Look(now, state)


def assess(tracks: Tracks, limits: Limits, states: Mapping[int, ProcState], now: float) -> Assessment:
    """Judge every rank, and note in its track what was said and seen, so that it is said once.

    ``states`` by local rank: a fresh look at each living one; who is missing has just gone. Drain the
    socket first, so that nobody is judged by what lies unread. About 10 µs a rank.
    """
    found = _Findings(tracks, limits, states, now)
    held = [_judge_state(found, track) for track in tracks.alive]
    if any(held) or tracks.held:
        # Also on the first look after it: the silence of the last seconds was still its.
        tracks.restart_timers(now)
        tracks.held = any(held)
    if tracks.held:
        found.at(now + LOOK_S)
        return found.done()
    for track in tracks.alive:
        _plan_look(found, track)
        for due in dues(track, tracks, limits):
            _judge_silence(found, track, due)
        _note_unwatched(found, track)
    _judge_leavers(found)
    return found.done()


# -- what the kernel says -------------------------------------------------------------------------------------------


def _judge_state(found: _Findings, track: Track) -> bool:
    """Whether silence must be held against nobody because of this rank."""
    state = found.states.get(track.local_rank)
    if state is None:
        track.voice_ended = track.voice != track.pid
        return False
    if state.traced:
        found.say(track, "traced", f"is traced (by pid {state.tracer_pid}): nobody's silence counts meanwhile")
        return True
    track.said.discard("traced")
    if state.state == "T" and found.limits.settings.ignore_stopped:
        found.say(track, "stopped", "is stopped, which is to be ignored: nobody's silence counts meanwhile")
        return True
    confirm_s = _confirmation(found, track, state)
    if confirm_s is None:
        track.same_look = None
        return False
    look = track.same_look
    if look is None or (look.state.state, look.state.switches) != (state.state, state.switches):
        look = track.same_look = Look(found.now, state)
    if found.now - look.at < confirm_s:
        found.at(look.at + confirm_s)
    else:
        found.stalls.append(_state_stall(track, state, found.now - look.at, confirm_s))
    return False


def _confirmation(found: _Findings, track: Track, state: ProcState) -> float | None:
    """How long this state must last to be a stall; ``None`` for a harmless one."""
    if state.state == "T":
        return STOP_CONFIRM_S
    if state.state == "Z" and state.threads > 1:
        return ZOMBIE_CONFIRM_S if state.living_threads else DYING_CONFIRM_S
    timeout_s = found.limits.settings.dstate_timeout_s
    if state.state == "D" and timeout_s > 0 and not track.is_in(CHECKPOINT):
        # Storage that is away for a while is what a checkpoint's own limit is for.
        return timeout_s
    return None


def _state_stall(track: Track, state: ProcState, lasted_s: float, limit_s: float) -> Stall:
    lasted = for_people(lasted_s)
    if state.state == "T":
        kind, reason = v.STOPPED, f"is stopped (state T) and was not continued for {lasted}"
    elif state.state == "D":
        where = f", waiting in {state.waits_in}" if state.waits_in else ""
        kind, reason = v.DSTATE, f"has been in uninterruptible sleep (state D) for {lasted}{where}"
    else:
        kind, reason = v.ZOMBIE_MAIN, f"lost its main thread {lasted} ago and has {state.threads - 1} threads left"
    return Stall(track.local_rank, kind, track.section, lasted_s, limit_s, reason)


def _plan_look(found: _Findings, track: Track) -> None:
    """Have a silent rank looked at now and then: no event tells of state D."""
    timeout_s = found.limits.settings.dstate_timeout_s
    every_s = min(LOOK_S, max(0.5, timeout_s / 4)) if timeout_s > 0 else LOOK_S
    silent_at = max(track.progress_at, found.tracks.fresh_at) + every_s
    found.at(silent_at if found.now < silent_at else found.now + every_s)


# -- silence --------------------------------------------------------------------------------------------------------


def dues(track: Track, tracks: Tracks, limits: Limits) -> list[Due]:
    """The silences that a living rank may be judged by. Empty when nothing can be said about it."""
    fresh_at, steps = tracks.fresh_at, track.beats
    if track.voice_ended:
        return []
    if track.sections is None:
        return [Due("", max(track.progress_at, fresh_at), limits.most_lenient(steps=steps, at=track.step))]
    if track.sections:
        return [
            Due(
                open_.name,
                max(open_.entered_at, track.beat_at, fresh_at),
                limits.of(open_.name, steps=steps, at=track.step),
            )
            for open_ in track.sections
        ]
    if tracks.left_at is not None:
        return []
    if steps:
        if tracks.others_in_section(track):
            return []
        since = max(track.progress_at, tracks.last_section_change(track), tracks.elsewhere_at, fresh_at)
        return [Due(STEP, since, limits.of(STEP, steps=steps, at=track.step))]
    if not is_watched(track, limits):
        return []
    return [Due(INIT, max(track.progress_at, fresh_at), limits.of(INIT))]


def first_due(track: Track, tracks: Tracks, limits: Limits) -> Due | None:
    """The silence that would be a stall first; ``None``: the rank has ended, is not watched, or not now."""
    silences = dues(track, tracks, limits) if track.alive else ()
    return min(silences, key=lambda due: due.since + due.limit.seconds, default=None)


def is_watched(track: Track, limits: Limits) -> bool:
    """Whether a rank has shown that it means to make steps."""
    if track.phase >= Phase.TRAINING or track.local_rank in limits.trained:
        return True
    given = limits.settings.init_timeout_s != DEFAULT_INIT_TIMEOUT_S or INIT in limits.settings.section_timeouts_s
    return track.phase is Phase.IMPORTED and given


def _judge_silence(found: _Findings, track: Track, due: Due) -> None:
    limit, since = due.limit, due.since
    over_at = since + limit.seconds
    if limit.source is Source.LEARNT:
        since = max(since, found.tracks.worked_at)
        over_at = min(_over_at(found, since, limit.seconds), due.since + found.limits.ceiling(due.section))
    over_at = max(over_at, found.tracks.patient_until)
    if found.now >= over_at:
        if limit.source is Source.LEARNT and found.now >= due.since + found.limits.ceiling(due.section):
            due = due._replace(limit=Limit(found.limits.ceiling(due.section), Source.DEFAULT))
        found.stalls.append(_silence_stall(found, track, due))
        return
    found.at(over_at)
    for percent in PERCENTS:
        if found.now - since < limit.seconds * percent / 100:
            found.at(since + limit.seconds * percent / 100)
            break
        _warn(found, track, due, percent)


def _over_at(found: _Findings, since: float, seconds: float) -> float:
    """When a silence is too long, unless somebody works in the second half of it: that gives as long again."""
    over_at = since + seconds
    if found.now - since < seconds / 2:
        return over_at
    looks = [track.quiet_look.at for track in found.tracks.alive if track.quiet_look is not None]
    if not looks or min(looks) < since:
        look_at_all(found.tracks, found.states, found.now)
        return max(over_at, found.now + seconds / 2)
    over_at = max(over_at, min(looks) + seconds / 2)
    return found.now + seconds if found.now >= over_at and _excuse_work(found) else over_at


def _excuse_work(found: _Findings) -> bool:
    working = [track for track in found.tracks.alive if _works(found, track)]
    if working:
        found.tracks.worked_at = found.now
    for track in working:
        found.say(track, "works", "says nothing for longer than ever before, but works: it gets more time")
    return bool(working)


def _works(found: _Findings, track: Track) -> bool:
    before, state = track.quiet_look, found.states.get(track.local_rank)
    if before is None or state is None or state.pid != before.state.pid:
        return False
    return works(before.state, state, found.now - before.at)


def works(before: ProcState, after: ProcState, seconds: float) -> bool:
    """Whether a process that says nothing does something. Spinning in place, or one endless wait, is nothing."""
    if seconds <= 0:
        return False
    switches, faults = after.switches - before.switches, after.faults - before.faults
    if (switches > 2 and switches / seconds >= _WORKS_SWITCHES_PER_S) or faults / seconds >= _WORKS_FAULTS_PER_S:
        return True
    if before.children_ticks is None or after.children_ticks is None:
        return False
    children_s = (after.children_ticks - before.children_ticks) / procstate.TICKS_PER_S
    return children_s / seconds >= _WORKS_CHILDREN


def _silence_stall(found: _Findings, track: Track, due: Due) -> Stall:
    silence_s, limit = found.now - due.since, due.limit
    lasted = for_people(silence_s)
    if due.section == STEP and not track.sections:
        kind, what = v.SILENT, f"made no step for {lasted}"
    elif due.section == INIT and not track.sections:
        kind, what = v.INIT_STALL, f"made no first step, and showed no other progress, for {lasted}"
    elif due.section:
        kind = v.INIT_STALL if due.section == INIT else v.SECTION
        what = f"has been in section {due.section} without a step for {lasted}"
    else:
        kind, what = v.SILENT, f"showed no progress for {lasted}"
    why = f"the limit is {for_people(limit.seconds)}, {limit.source.value}"
    if limit.source is Source.LEARNT:
        why += f": no silence so far was longer than {for_people(found.limits.longest_s(due.section))}"
    learnt = limit.source is Source.LEARNT
    return Stall(track.local_rank, kind, due.section, silence_s, limit.seconds, f"{what}; {why}", learnt)


def _warn(found: _Findings, track: Track, due: Due, percent: int) -> None:
    silence_s, limit_s = found.now - due.since, due.limit.seconds
    if track.warned.get(due.section, 0) >= percent or silence_s < _NEWS * found.limits.longest_s(due.section):
        return
    ranks = []
    for other in found.tracks.alive:
        # Ranks that work together fall silent together: one warning for all.
        alike = [theirs for theirs in dues(other, found.tracks, found.limits) if theirs.section == due.section]
        if other is track or (alike and found.now - alike[0].since >= _TOGETHER * silence_s):
            other.warned[due.section] = max(percent, other.warned.get(due.section, 0))
            ranks.append(other.local_rank)
    where = (
        f"no step in section {due.section}" if track.sections else "no progress" if due.section != STEP else "no step"
    )
    reason = f"{found.name(ranks)}: {where} for {for_people(silence_s)}; the limit is {for_people(limit_s)}"
    found.warnings.append(StallWarning(percent, tuple(ranks), due.section, silence_s, limit_s, reason))


# -- who is not judged, and who has left ----------------------------------------------------------------------------


def _note_unwatched(found: _Findings, track: Track) -> None:
    """Say once that a program shows nothing to judge it by."""
    if not _is_dark(track, found.limits) or "unwatched" in track.said:
        return
    due_at = max(track.progress_at, found.tracks.fresh_at) + found.limits.ceiling(INIT)
    if found.now < due_at:
        found.at(due_at)
        return
    ranks = [other for other in found.tracks.alive if _is_dark(other, found.limits)]
    for other in ranks:
        other.said.add("unwatched")
    local_ranks = tuple(other.local_rank for other in ranks)
    reason = f"{found.name(local_ranks)}: no step, beat or section so far; watched only for what the kernel tells"
    found.notices.append(Notice("unwatched", local_ranks, reason))


def _is_dark(track: Track, limits: Limits) -> bool:
    return not track.beats and track.sections == [] and not is_watched(track, limits)


def _judge_leavers(found: _Findings) -> None:
    """A rank has ended with 0: the others may take their time only as long as they do something."""
    tracks, timeout_s = found.tracks, found.limits.settings.exit_barrier_timeout_s
    staying = tracks.alive
    if tracks.left_at is None or not staying or timeout_s <= 0:
        return
    busy_at = max(tracks.elsewhere_at, *(track.progress_at for track in staying))
    since = max(tracks.left_at, tracks.fresh_at, tracks.worked_at, busy_at)
    over_at = max(_over_at(found, since, timeout_s), tracks.patient_until, *_sections_over_at(found, staying))
    if found.now < over_at:
        found.at(min(over_at, since + timeout_s / 2) if found.now < since + timeout_s / 2 else over_at)
    else:
        found.stalls.append(_barrier_stall(found, staying, found.now - since))


def _sections_over_at(found: _Findings, staying: Sequence[Track]) -> list[float]:
    """Of each rank inside sections, when the first of their limits is reached."""
    silences = [dues(track, found.tracks, found.limits) for track in staying if track.sections != []]
    return [min(due.since + due.limit.seconds for due in theirs) for theirs in silences if theirs]


def _barrier_stall(found: _Findings, staying: Sequence[Track], silence_s: float) -> Stall:
    tracks, timeout_s = found.tracks, found.limits.settings.exit_barrier_timeout_s
    slowest = min(staying, key=lambda track: (track.progress_at, track.local_rank))
    gone = [track.local_rank for track in tracks.ranks if track.exit_code == 0]
    left = found.name(gone) if gone else "ranks of other nodes"
    waited = for_people(found.now - (tracks.left_at or 0.0))
    state = found.states.get(slowest.local_rank)
    what = "shows no progress" if state is not None and state.state == "R" else "does nothing"
    reason = f"has not ended, and {what}, {waited} after {left} ended with 0 (--exit-barrier-timeout)"
    return Stall(slowest.local_rank, v.EXIT_BARRIER, slowest.section, silence_s, timeout_s, reason)
