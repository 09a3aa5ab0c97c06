"""What ranks of other nodes have to do with a silence here. Pure: accounts in, one survey out, and what follows.

Ranks of a job wait for each other across nodes, but each agent sees only its own. So before a rank is condemned for its
silence, its agent asks the others for an :class:`Account` of theirs. The accounts of all nodes make a :class:`Survey`,
which all of them get, and each then does for ranks elsewhere what it does for its own:

* while one is in a section within the limit of that, or is traced, or has just left a section, others may wait for it;
* while one works, a limit that was learnt ends nobody, nor does the exit barrier;
* once one has ended with 0, no steps are expected of the others;
* else the one that does not wait like the others is the suspect, wherever it is, and those that wait are its victims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ftlaunch.heartbeat.watching import stalls, suspects
from ftlaunch.heartbeat.watching.limits import STEP, Limits
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.stackread import Frame, StackSnapshot, ThreadStack
from ftlaunch.heartbeat.watching.suspects import RankEvidence
from ftlaunch.heartbeat.watching.tracks import Track, Tracks
from ftlaunch.heartbeat.watching.verdicts import EXIT_BARRIER, SILENT, Stall, for_people

PATIENCE_S = 10.0
"""So long after a limit that was given the node of a suspect may take to act."""
_MAX_RANKS = 1024
_MAX_FRAMES = 16
_MAX_TEXT = 300
_MAX_NAMED = 64
_MAX_WHY = 1000
_TOGETHER = 0.8
"""Ranks that wait for each other fall silent together, so far as their agents can tell."""


class RankAccount(NamedTuple):
    """One rank. Ages are durations, so no clocks are compared."""

    evidence: RankEvidence
    within: bool | None = None
    """In a section, within the limit of each that is open; ``None``: in no section."""
    traced: bool = False
    works: bool = False
    watched: bool = True
    """It has shown that it means to make steps."""


class Account(NamedTuple):
    """One node. ``changed_s``: how long ago a rank there last opened or closed a section; infinite for never."""

    ranks: tuple[RankAccount, ...]
    changed_s: float = math.inf

    def excuses(self, work_counts: bool) -> bool:
        """Whether it explains a silence without any look at stacks. ``work_counts``: :attr:`.Stall.excused_by_work`."""
        return any(one.within or one.traced or (work_counts and one.works) for one in self.ranks)


class Survey(NamedTuple):
    """What all accounts say together. The first three are sentences, empty for no. ``rank`` made it necessary."""

    rank: int
    silence_s: float
    limit_s: float
    learnt: bool
    complete: bool
    """All nodes have told."""
    traced: str = ""
    section: str = ""
    works: str = ""
    left: bool = False
    changed_s: float = math.inf
    suspects: tuple[int, ...] = ()
    why: str = ""

    @property
    def sentence(self) -> str:
        """In a few words, for the records."""
        missing = "" if self.complete else "; not all nodes have answered"
        left = "ranks have ended with 0" if self.left else ""
        found = self.traced or self.section or left or self.why or self.works or "nothing tells the ranks apart"
        return found + missing


# -- one node -------------------------------------------------------------------------------------------------------


def account(tracks: Tracks, limits: Limits, states: Mapping[int, ProcState], now: float) -> Account:
    """The ranks of this node; ``states`` as for :func:`.stalls.assess`. Stacks are added by :func:`with_stacks`."""
    ranks = tuple(_rank_account(track, tracks, limits, states.get(track.local_rank), now) for track in tracks.ranks)
    changed_at = tracks.changed_at
    return Account(ranks, now - changed_at if changed_at >= 0 else math.inf)


def _rank_account(track: Track, tracks: Tracks, limits: Limits, state: ProcState | None, now: float) -> RankAccount:
    evidence = suspects.evidence_of(track, tracks.first_rank, now)
    if not track.alive or state is None:
        return RankAccount(evidence)
    evidence = replace(evidence, state=state.state)
    within = None
    if track.sections != [] and not track.voice_ended:
        within = all(now - due.since < due.limit.seconds for due in stalls.dues(track, tracks, limits))
    look = track.quiet_look
    works = look is not None and look.state.pid == state.pid and stalls.works(look.state, state, now - look.at)
    ignored = state.state == "T" and limits.settings.ignore_stopped
    watched = track.beats > 0 or stalls.is_watched(track, limits)
    return RankAccount(evidence, within, state.traced or ignored, works, watched)


def with_stacks(account: Account, found: Sequence[RankEvidence]) -> Account:
    """The same, with what was found out about the stacks of its ranks since."""
    seen = {one.rank: one for one in found}
    return account._replace(ranks=tuple(_seen(one, seen.get(one.evidence.rank)) for one in account.ranks))


def _seen(one: RankAccount, found: RankEvidence | None) -> RankAccount:
    if found is None:
        return one
    evidence = replace(one.evidence, snapshot=found.snapshot, state=found.state, waits_in=found.waits_in)
    return one._replace(evidence=evidence)


def to_json(account: Account) -> dict[str, Any]:
    """Each stack once, innermost calls only: about 100 bytes a rank, and 2 kB for each place at which ranks are."""
    stacks: dict[tuple[Frame, ...], int] = {}
    ranks = []
    for one in account.ranks[:_MAX_RANKS]:
        told = one.evidence
        frames = tuple(_short(frame) for frame in told.snapshot.main[:_MAX_FRAMES])
        ranks.append(
            {
                "rank": told.rank,
                "state": told.state,
                "waits_in": told.waits_in[:_MAX_TEXT],
                "age_s": round(told.progress_age_s, 3),
                "steps": told.steps,
                "section": told.section,
                "exit_code": told.exit_code,
                "within": one.within,
                "traced": one.traced,
                "works": one.works,
                "watched": one.watched,
                "stack": stacks.setdefault(frames, len(stacks)) if frames else None,
            }
        )
    changed_s = None if math.isinf(account.changed_s) else round(account.changed_s, 3)
    return {"ranks": ranks, "stacks": [[list(frame) for frame in frames] for frames in stacks], "changed_s": changed_s}


def _short(frame: Frame) -> Frame:
    return Frame(frame.file[-_MAX_TEXT:], frame.line, frame.function[:_MAX_TEXT])


def from_json(raw: Mapping[str, Any]) -> Account:
    """What another agent told. Raises :class:`ValueError` when it makes no sense."""
    told, stacks = raw.get("ranks"), raw.get("stacks")
    if not isinstance(told, list) or not isinstance(stacks, list) or len(told) > _MAX_RANKS:
        raise ValueError("not an account")
    places = [_frames(stack) for stack in stacks[:_MAX_RANKS]]
    ranks = tuple(_read_rank(one, places) for one in told)
    changed_s = raw.get("changed_s")
    return Account(ranks, math.inf if changed_s is None else _seconds(changed_s))


def _read_rank(raw: object, places: Sequence[tuple[Frame, ...]]) -> RankAccount:
    if not isinstance(raw, Mapping):
        raise ValueError("not a rank")
    code, within, stack = raw.get("exit_code"), raw.get("within"), raw.get("stack")
    frames: tuple[Frame, ...] = ()
    if stack is not None:
        frames = places[_count(stack, len(places) - 1)]
    if within is not None and not isinstance(within, bool):
        raise ValueError("neither within a limit nor beyond it")
    evidence = RankEvidence(
        rank=_count(raw.get("rank")),
        snapshot=_snapshot(frames),
        state=_text(raw.get("state"))[:1],
        waits_in=_text(raw.get("waits_in")),
        progress_age_s=_seconds(raw.get("age_s")),
        steps=_count(raw.get("steps")),
        section=_text(raw.get("section")),
        exit_code=None if code is None else _count(code, lowest=-255),
    )
    return RankAccount(
        evidence, within, raw.get("traced") is True, raw.get("works") is True, raw.get("watched") is True
    )


def _snapshot(frames: tuple[Frame, ...]) -> StackSnapshot:
    return StackSnapshot((ThreadStack("main", frames, "MainThread"),)) if frames else StackSnapshot()


def _frames(raw: object) -> tuple[Frame, ...]:
    if not isinstance(raw, list):
        raise ValueError("not a stack")
    frames = []
    for one in raw[:_MAX_FRAMES]:
        if not isinstance(one, list) or len(one) != 3:
            raise ValueError("not a frame")
        frames.append(Frame(_text(one[0]), _count(one[1]), _text(one[2])))
    return tuple(frames)


# -- all nodes ------------------------------------------------------------------------------------------------------


def survey(stall: Stall, rank: int, accounts: Sequence[Account], complete: bool) -> Survey:
    """What all nodes together say to the stall of ``rank``, its own node among them."""
    ranks = [one for account in accounts for one in account.ranks]
    found = Survey(
        rank=rank,
        silence_s=stall.silence_s,
        limit_s=stall.limit_s,
        learnt=stall.learnt,
        complete=complete,
        traced=_first(ranks, lambda one: one.traced, "is traced"),
        section=_first(ranks, lambda one: one.within is True, "is in section {section}"),
        works=_first(ranks, lambda one: one.works, "works"),
        left=any(one.evidence.exit_code == 0 for one in ranks),
        changed_s=min((account.changed_s for account in accounts), default=math.inf),
    )
    if found.traced or found.section or found.changed_s < stall.limit_s:
        return found
    if found.works and stall.excused_by_work:
        return found
    if found.left and stall.kind != EXIT_BARRIER:
        return found
    # A rank beyond the limit of its section has had its time, whatever the others do.
    beyond = [one.evidence for one in ranks if one.within is False]
    suspicion = suspects.suspect(
        beyond or [one.evidence for one in ranks if one.watched and one.evidence.exit_code is None]
    )
    return found._replace(suspects=suspicion.ranks[:_MAX_NAMED], why=suspicion.sentence[:_MAX_WHY])


def _first(ranks: Sequence[RankAccount], holds: Callable[[RankAccount], bool], what: str) -> str:
    alike = [one for one in ranks if holds(one)]
    if not alike:
        return ""
    first = alike[0].evidence
    more = f", as well as {len(alike) - 1} more" if len(alike) > 1 else ""
    return f"rank {first.rank} {what.format(section=first.section or 'unknown')}{more}"


def survey_to_json(found: Survey) -> dict[str, Any]:
    """A kilobyte or two."""
    changed_s = None if math.isinf(found.changed_s) else found.changed_s
    return {**found._asdict(), "changed_s": changed_s, "suspects": list(found.suspects)}


def survey_from_json(raw: Mapping[str, Any]) -> Survey:
    """What another agent told. Raises :class:`ValueError` when it makes no sense."""
    named, changed_s = raw.get("suspects"), raw.get("changed_s")
    if not isinstance(named, list) or len(named) > _MAX_NAMED:
        raise ValueError("not a survey")
    return Survey(
        rank=_count(raw.get("rank")),
        silence_s=_seconds(raw.get("silence_s")),
        limit_s=_seconds(raw.get("limit_s")),
        learnt=raw.get("learnt") is True,
        complete=raw.get("complete") is True,
        traced=_text(raw.get("traced")),
        section=_text(raw.get("section")),
        works=_text(raw.get("works")),
        left=raw.get("left") is True,
        changed_s=math.inf if changed_s is None else _seconds(changed_s),
        suspects=tuple(_count(rank) for rank in named),
        why=_text(raw.get("why"), _MAX_WHY),
    )


# -- what follows ---------------------------------------------------------------------------------------------------


def heed(found: Survey, tracks: Tracks, now: float) -> None:
    """Let it count for the ranks here, as the same facts of this node do."""
    if found.traced:
        tracks.restart_timers(now)
    busy_at = now if found.section else now - found.changed_s
    if busy_at > tracks.elsewhere_at:
        tracks.elsewhere_at = busy_at
        for track in tracks.alive:
            # A silence that began before is no measure of a step.
            track.tainted_at = max(track.tainted_at, busy_at)
    if found.left and tracks.left_at is None:
        tracks.left_at = now
    if found.works:
        tracks.worked_at = now
    if found.why and found.complete and found.learnt:
        tracks.blamed_at = now


def take_note(tracks: Tracks, limits: Limits, now: float) -> None:
    """The generation has ended: if by a learnt limit of another node, that does not hold at this place next time."""
    if now - tracks.blamed_at <= PATIENCE_S:
        for track in tracks.ranks[:1]:
            limits.distrust(track.beats, track.step)


def accused(found: Survey, tracks: Tracks, limits: Limits, now: float) -> Track | None:
    """The rank of this node that holds up all others, by the limit of the node that asked.

    That may be shorter than the one learnt here: ranks wait for each other, so whatever was ever slow was silence
    there, too. A rank that was not silent for about as long itself is not held to it.
    """
    if not found.complete:
        return None
    least_s = _TOGETHER * max(found.limit_s, min(limits.settings.floor_s, limits.ceiling(STEP)))
    for track in tracks.alive:
        if tracks.first_rank + track.local_rank in found.suspects and now - track.progress_at >= least_s:
            return track
    return None


def accusation(found: Survey, track: Track, now: float) -> Stall:
    """The stall of a rank of this node that another node's silence comes from."""
    waited = f"rank {found.rank} made no progress for {for_people(found.silence_s)}"
    limit = f"the limit there is {for_people(found.limit_s)}{', learnt' if found.learnt else ''}"
    reason = f"holds up ranks of other nodes: {waited}, {limit} ({found.why})"
    silence_s = now - track.progress_at
    return Stall(track.local_rank, SILENT, track.section, silence_s, found.limit_s, reason, found.learnt)


def patience(stall: Stall, found: Survey | None, tracks: Tracks, limits: Limits, now: float) -> float | None:
    """Until when to leave a stall here alone although nothing that was told excuses it; ``None``: it stands.

    Where a rank elsewhere is the suspect, its agent acts. Where nobody told enough, ranks there may be in a section.
    ``found``: ``None`` when nobody told anything.
    """
    since = now - stall.silence_s
    here = range(tracks.first_rank, tracks.first_rank + len(tracks.ranks))
    if found is not None and found.suspects and not any(rank in here for rank in found.suspects):
        end = since + (limits.ceiling(stall.section) if stall.learnt else stall.limit_s + PATIENCE_S)
    elif stall.learnt and (found is None or not found.complete):
        end = since + limits.untold_s(stall.section)
    else:
        return None
    until = min(now + (stall.limit_s if stall.learnt else PATIENCE_S), end)
    return until if until > now else None


def _count(value: object, highest: int = 1 << 62, lowest: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{value!r} is no number between {lowest} and {highest}")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e9:
        raise ValueError(f"{value!r} is no duration")
    return float(value)


def _text(value: object, limit: int = _MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError("no text, or too much of it")
    return "".join(character if character.isprintable() else " " for character in value)
