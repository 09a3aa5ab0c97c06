"""Whether any step was lost or made twice, from what the ranks wrote down themselves. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_SHOWN = 3


@dataclass(frozen=True)
class Entry:
    """One step of one process. ``step`` is the script's own number, where it tells one."""

    pid: int
    generation: int
    count: int
    step: int | None


@dataclass(frozen=True)
class StepAccount:
    """``known``: whether the scripts told numbers, so that anything could be said about steps across lives."""

    known: bool = False
    last: int | None = None
    made: int = 0
    """Different steps, by the rank that has most."""
    repeated: int = 0
    """Steps that were made again after a restart, by the rank that has most: those since the last checkpoint."""
    problems: tuple[str, ...] = field(default=())


def parse_ledger(text: str) -> tuple[Entry, ...]:
    """``PID GENERATION COUNT STEP`` lines; what is none of that, as a line that was cut off, is left out."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if (
            len(words) == 4
            and all(word.isdecimal() for word in words[:3])
            and (words[3] == "-" or words[3].isdecimal())
        ):
            step = None if words[3] == "-" else int(words[3])
            found.append(Entry(int(words[0]), int(words[1]), int(words[2]), step))
    return tuple(found)


def account(ledger: Mapping[int, Sequence[Entry]], finished: bool = True) -> StepAccount:
    """Look through all ranks: within a life steps follow each other; a new life begins no later than the old one ended.

    Steps that are made again since the last checkpoint are counted, and are no problem. ``finished``: the job went on
    to its own end, so all ranks must have come equally far.
    """
    # The first optimizer step of a life is noticed before the script tells its number: what has none is left out then.
    numbered = {rank: found for rank, entries in sorted(ledger.items()) if (found := _lives(entries))}
    if not numbered or len(numbered) < sum(map(bool, ledger.values())):
        return StepAccount(problems=_counts(ledger))
    stride = _stride(numbered)
    problems: list[str] = []
    for rank, found in numbered.items():
        problems += _within(rank, found, stride) + _between(rank, found, stride)
    last = {rank: max(life[-1] for life in found) for rank, found in numbered.items()}
    if finished and len(set(last.values())) > 1:
        told = ", ".join(f"rank {rank} at {step}" for rank, step in list(last.items())[:_SHOWN])
        problems.append(f"ranks ended at different steps: {told}")
    made = {rank: len({step for life in found for step in life}) for rank, found in numbered.items()}
    again = [sum(map(len, found)) - made[rank] for rank, found in numbered.items()]
    return StepAccount(True, max(last.values()), max(made.values()), max(again), tuple(problems))


def _lives(entries: Sequence[Entry]) -> list[list[int]]:
    by_life = itertools.groupby(entries, lambda entry: (entry.pid, entry.generation))
    return [steps for _, life in by_life if (steps := [entry.step for entry in life if entry.step is not None])]


def _counts(ledger: Mapping[int, Sequence[Entry]]) -> tuple[str, ...]:
    """Without numbers only this can be told: that no life skipped one."""
    problems = []
    for rank, entries in sorted(ledger.items()):
        for _, life in itertools.groupby(entries, lambda entry: (entry.pid, entry.generation)):
            counts = [entry.count for entry in life]
            if counts != list(range(1, len(counts) + 1)):
                problems.append(f"rank {rank}: its record of steps has gaps")
    return tuple(problems)


def _stride(lives: Mapping[int, list[list[int]]]) -> int:
    """By how much a script's number grows from beat to beat: not every script beats at each of its steps."""
    gaps = Counter(b - a for found in lives.values() for life in found for a, b in itertools.pairwise(life) if b > a)
    return gaps.most_common(1)[0][0] if gaps else 1


def _within(rank: int, lives: Sequence[Sequence[int]], stride: int) -> list[str]:
    found = []
    for life in lives:
        for before, step in itertools.pairwise(life):
            if step <= before:
                found.append(f"rank {rank}: step {step} came after step {before} in one life")
            elif step - before > stride:
                found.append(f"rank {rank}: after step {before} came step {step}: {_missing(before, step, stride)}")
    return found[:_SHOWN]


def _between(rank: int, lives: Sequence[Sequence[int]], stride: int) -> list[str]:
    found, reached = [], None
    for life in lives:
        if reached is not None and life[0] > reached + stride:
            missing = _missing(reached, life[0], stride)
            found.append(f"rank {rank}: a new life began with step {life[0]}, after {reached}: {missing}")
        reached = life[-1] if reached is None else max(reached, life[-1])
    return found[:_SHOWN]


def _missing(before: int, after: int, stride: int) -> str:
    count = (after - before) // stride - 1
    return f"{count} step{'s were' if count != 1 else ' was'} lost"
