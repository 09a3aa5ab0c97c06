"""Who caused the silence: ranks grouped by what they do, and the one named that does something else. Pure.

When one rank is stuck, the others wait for it inside a collective: they are its victims, and silent as long as it is.
So the suspect is the odd one out: not in a call that waits for other ranks, or, where all wait, in another such call
than most, or, where that says nothing either, the one that made progress least recently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ftlaunch.heartbeat.watching.stackread import Frame, StackSnapshot, is_library, user_frame
from ftlaunch.heartbeat.watching.tracks import Track
from ftlaunch.heartbeat.watching.verdicts import for_people, rank_names

_WAITING_FILE = (
    r"/torch/(distributed/(?!checkpoint/|elastic/|run\.py|launch)|nn/parallel/|cuda/(__init__|streams)\.py"
    r"|autograd/graph\.py)|/deepspeed/comm/|/horovod/"
)
_WAITING_CALL = (
    r"wait|barrier|reduce|gather|all_?to_?all|broadcast|scatter|recv|send|synchronize|rendezvous|process_group"
    r"|_engine_run_backward|_sync_|_store"
)
_PLUMBING = r"^_|^(wrapper|inner|decorate_context)$"
_CLEARLY_OLDER_S = 1.0
_CLEARLY_OLDER_FACTOR = 1.5
_UNTOLD_S = 0.15
"""A worker tells of steps ten times a second at most."""
_SHOWN_FRAMES = 40


@dataclass(frozen=True)
class RankEvidence:
    """One rank at the moment of the stall. ``rank`` is the number in the whole job."""

    rank: int
    snapshot: StackSnapshot = field(default_factory=StackSnapshot)
    state: str = ""
    """Letter of the kernel's process state."""
    waits_in: str = ""
    progress_age_s: float = 0.0
    steps: int = 0
    section: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads are at the same place."""

    ranks: tuple[int, ...]
    doing: str
    """``all_reduce (distributed_c10d.py:3094)``, ``load (train.py:88)``, ``stopped (state T)``"""
    waiting: bool
    """In a call that waits for other ranks."""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Suspicion:
    """``ranks``: one in the clear case, several that cannot be told apart, none when nothing speaks against any."""

    ranks: tuple[int, ...]
    why: str
    groups: tuple[Group, ...]

    @property
    def rank(self) -> int | None:
        """The suspect, if it is one."""
        return self.ranks[0] if len(self.ranks) == 1 else None

    @property
    def sentence(self) -> str:
        """``3 ranks in all_reduce (distributed_c10d.py:3094), rank 1 in load (train.py:88): rank 1 is the suspect``"""
        return f"{describe_groups(self.groups)}: {self.why}" if self.groups else self.why


def evidence_of(track: Track, first_rank: int, now: float) -> RankEvidence:
    """What the heartbeats tell of a rank. ``first_rank``: the number of local rank 0 in the whole job."""
    return RankEvidence(
        rank=first_rank + track.local_rank,
        progress_age_s=max(0.0, now - track.progress_at),
        steps=track.steps,
        section=track.section,
        exit_code=track.exit_code,
    )


def suspect(evidence: Sequence[RankEvidence]) -> Suspicion:
    """Name the rank that the others wait for, if it is among these: of one node, all may be victims."""
    groups = group_ranks(evidence)
    by_rank = {one.rank: one for one in evidence}
    odd = _odd_ones(groups, by_rank)
    if len(odd) == 1:
        return Suspicion(odd, f"rank {odd[0]} is the suspect", groups)
    oldest = oldest_progress([by_rank[rank] for rank in odd or tuple(by_rank)])
    if oldest is not None:
        why = f"rank {oldest.rank} made progress least recently and is the suspect"
        return Suspicion((oldest.rank,), why, groups)
    if odd:
        return Suspicion(odd, f"one of {rank_names(odd)} is the suspect", groups)
    return Suspicion((), "nothing tells the ranks of this node apart", groups)


def group_ranks(evidence: Sequence[RankEvidence]) -> tuple[Group, ...]:
    """Ranks by identical stack of the main thread, largest group first; who left no stack by process state."""
    members: dict[tuple[str, tuple[Frame, ...]], list[RankEvidence]] = {}
    for one in evidence:
        frames = one.snapshot.main
        members.setdefault(("" if frames else _stackless(one), frames), []).append(one)
    groups = [
        Group(
            tuple(sorted(one.rank for one in alike)),
            doing(frames) if frames else label,
            is_waiting(frames),
            frames,
        )
        for (label, frames), alike in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def describe_groups(groups: Sequence[Group]) -> str:
    """``3 ranks in barrier (…), rank 1 in load (…)``; groups that do the same from different lines are put together."""
    merged: dict[str, list[int]] = {}
    for group in groups:
        merged.setdefault(group.doing, []).extend(group.ranks)
    parts = []
    for what, ranks in sorted(merged.items(), key=lambda item: (-len(item[1]), item[1])):
        who = rank_names(ranks) if len(ranks) < 3 else f"{len(ranks)} ranks"
        parts.append(f"{who} {what if what.startswith(_STATES) else f'in {what}'}")
    return ", ".join(parts)


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Whether the innermost calls wait for other ranks (or for the GPU, which waits for them)."""
    return bool(_waiting_calls(frames))


def doing(frames: Sequence[Frame]) -> str:
    """``all_reduce (distributed_c10d.py:3094)`` where ranks wait for others, else ``read (train.py:88)``: the innermost
    function, and the user's line that led to it.
    """
    if not frames:
        return "an unknown place"
    waits = _waiting_calls(frames)
    for frame in waits:
        if not re.search(_PLUMBING, frame.function):
            return str(frame)
    if waits:
        return str(waits[0]._replace(function="backward" if "backward" in waits[0].function else waits[0].function))
    user = user_frame(frames)
    return f"{frames[0].function} ({(user or frames[0]).place})"


def _waiting_calls(frames: Sequence[Frame]) -> list[Frame]:
    """Those between the innermost call and the user's code that wait for others."""
    found = []
    for frame in frames:
        if not is_library(frame.file):
            break
        if re.search(_WAITING_FILE, frame.file) and re.search(_WAITING_CALL, frame.function):
            found.append(frame)
    return found


def oldest_progress(evidence: Iterable[RankEvidence]) -> RankEvidence | None:
    """The rank that is clearly behind: silent clearly longer than all others, or with fewer steps than all of them;
    ``None`` if none is.
    """
    by_age = sorted(evidence, key=lambda one: (-one.progress_age_s, one.rank))
    if len(by_age) < 2:
        return by_age[0] if by_age else None
    longest, next_s = by_age[0], by_age[1].progress_age_s
    older_s = longest.progress_age_s - next_s
    if older_s >= _CLEARLY_OLDER_S and longest.progress_age_s >= _CLEARLY_OLDER_FACTOR * next_s:
        return longest
    behind = all(longest.steps < one.steps for one in by_age[1:])
    # Less than that, and it may just not have told its last steps.
    return longest if behind and older_s >= _UNTOLD_S else None


def _odd_ones(groups: Sequence[Group], by_rank: Mapping[int, RankEvidence]) -> tuple[int, ...]:
    """Ranks that do something else than wait like the others."""
    stuck = [rank for rank, one in by_rank.items() if one.state in ("T", "D", "Z")]
    if stuck:
        return tuple(sorted(stuck))
    known = [group for group in groups if group.frames]
    busy = [group for group in known if not group.waiting]
    if busy and len(busy) < len(known):
        return _ranks(busy)
    # All wait, or none does: then most are where the others keep them.
    return _ranks(group for group in known if group is not known[0]) if _has_majority(known) else ()


def _has_majority(groups: Sequence[Group]) -> bool:
    sizes = [len(group.ranks) for group in groups]
    return len(sizes) > 1 and 2 * sizes[0] > sum(sizes)


def _ranks(groups: Iterable[Group]) -> tuple[int, ...]:
    return tuple(sorted(rank for group in groups for rank in group.ranks))


_STATES = ("stopped", "in uninterruptible", "without", "ended", "of unknown")


def _stackless(one: RankEvidence) -> str:
    if one.exit_code is not None:
        return f"ended with {one.exit_code}"
    where = f" in {one.waits_in}" if one.waits_in else ""
    if one.state == "T":
        return "stopped (state T)"
    if one.state == "D":
        return f"in uninterruptible sleep{where} (state D)"
    if one.state == "Z":
        return "without its main thread (state Z)"
    return f"without a Python stack (state {one.state or 'unknown'}{where})"


def render(suspicion: Suspicion, evidence: Sequence[RankEvidence]) -> list[str]:
    """Blocks of text for the incident: the sentence, one block per group, and one with the state of each rank.

    No source lines: the file may lie on the very storage that everybody hangs on.
    """
    blocks = [f"suspect: {suspicion.sentence}"]
    for group in suspicion.groups:
        if group.frames:
            head = f"{rank_names(group.ranks)}, main thread (most recent call first):"
            blocks.append("\n".join([head, *_frame_lines(group.frames)]))
    blocks.append("\n".join(_state_line(one) for one in evidence))
    return blocks


def _frame_lines(frames: Sequence[Frame]) -> Iterable[str]:
    for frame in frames[:_SHOWN_FRAMES]:
        yield f'  File "{frame.file}", line {frame.line or "?"} in {frame.function}'
    if len(frames) > _SHOWN_FRAMES:
        yield f"  … {len(frames) - _SHOWN_FRAMES} more"


def _state_line(one: RankEvidence) -> str:
    state = f"ended with {one.exit_code}" if one.exit_code is not None else f"state {one.state or 'unknown'}"
    where = f", kernel: {one.waits_in}" if one.waits_in else ""
    section = f", in section {one.section}" if one.section not in ("", "step") else ""
    age = for_people(one.progress_age_s)
    return f"rank {one.rank}: {state}{where}{section}, last progress {age} ago, step {one.steps}"
