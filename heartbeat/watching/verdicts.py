"""What comes out of hearing and judging the ranks, as values and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

SILENT = "silent"
"""No step for too long, outside of sections or in sections that are not known."""
SECTION = "section"
"""Too long in a section without a step."""
INIT_STALL = "init"
"""No first step, or too long in section ``init``."""
STOPPED = "stopped"
DSTATE = "dstate"
ZOMBIE_MAIN = "zombie_main"
EXIT_BARRIER = "exit_barrier"
"""Another rank ended with 0 long ago, and this one neither ends nor does anything."""

AT_ONCE = frozenset({STOPPED, DSTATE, ZOMBIE_MAIN})
"""Kinds that the kernel vouches for: the rank itself is the cause, whatever the others wait for."""


class Progress(NamedTuple):
    """How far this node's ranks came in one generation, as heard from their beats."""

    beaten: bool = False
    """Any rank has beaten at least once."""
    step: int | None = None
    """Highest step that a script told."""
    ticks: int = 0
    """Most optimizer steps that any rank made, counted by the hooks."""
    checkpoints: int = 0
    """Complete checkpoints heard of."""
    checkpoint_step: int | None = None


class Stall(NamedTuple):
    """A verdict. ``kind`` is one of this module's constants; ``reason`` is a predicate: ``made no step for 3 s``."""

    local_rank: int
    kind: str
    section: str
    silence_s: float
    limit_s: float
    reason: str
    learnt: bool = False
    """Its limit was learnt, not given."""

    @property
    def excused_by_work(self) -> bool:
        """Whether it is none while some rank works."""
        return self.learnt or self.kind == EXIT_BARRIER


class StallWarning(NamedTuple):
    """A silence has reached ``percent`` of its limit. Said once a silence, for all ranks that fell silent together."""

    percent: int
    local_ranks: tuple[int, ...]
    section: str
    silence_s: float
    limit_s: float
    reason: str


class Notice(NamedTuple):
    """Something to say once. ``kind``: ``traced``, ``stopped`` (and ignored), ``works``, ``unwatched``."""

    kind: str
    local_ranks: tuple[int, ...]
    reason: str


class Assessment(NamedTuple):
    """``next_deadline``: judge again no later than this (CLOCK_MONOTONIC seconds); infinite with nobody to judge."""

    stalls: tuple[Stall, ...] = ()
    warnings: tuple[StallWarning, ...] = ()
    notices: tuple[Notice, ...] = ()
    next_deadline: float = math.inf


def for_people(seconds: float) -> str:
    """``0.021 s``, ``3.00 s``, ``31.2 s``, ``412 s``"""
    if math.isinf(seconds):
        return "no limit"
    digits = 3 if seconds < 0.1 else 2 if seconds < 10 else 1 if seconds < 100 else 0
    return f"{seconds:.{digits}f} s"


def rank_names(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``"""
    different = set(ranks)
    return f"rank{'s' * (len(different) != 1)} {rank_ranges(different)}"


def rank_ranges(ranks: Iterable[int]) -> str:
    """``0-3, 5, 7-9``"""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[start], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = end
    return ", ".join(parts)
