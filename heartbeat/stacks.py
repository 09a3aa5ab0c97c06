"""Python stacks of all ranks side by side: parsed from faulthandler's text, grouped, and read for who holds up whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.heartbeat.stackdump import without_our_frames

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_MAX_FRAMES = 100
_WAITING = (
    "torch/distributed/",
    "torch/autograd/graph.py",
    "torch/nn/parallel/",
    "threading.py",
    "queue.py",
    "selectors.py",
    "socket.py",
    "multiprocessing/connection.py",
)
_COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "monitored_barrier",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "send",
        "wait",
        "_engine_run_backward",
        "synchronize",
    }
)


@dataclass(frozen=True)
class Frame:
    """One call. ``line`` is 0 where the interpreter could not tell."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads stand at the same place."""

    ranks: tuple[int, ...]
    stack: Stack
    waiting: bool
    """In a collective or another call that waits for somebody else."""


def parse(text: str) -> tuple[Stack, ...]:
    """The stacks of all threads, innermost frame first, the main thread last; of the last dump in the text."""
    stacks: list[list[Frame]] = []
    for line in without_our_frames(text).splitlines():
        if _THREAD.match(line):
            stacks.append([])
            continue
        found = _FRAME.match(line)
        if found and stacks and len(stacks[-1]) < _MAX_FRAMES:
            number = int(found[2]) if found[2].isdigit() else 0
            stacks[-1].append(Frame(found[1], number, found[3]))
    return tuple(tuple(stack) for stack in stacks)


def main_stack(text: str) -> Stack:
    """The main thread's stack, empty when there is none. faulthandler writes the oldest thread last."""
    stacks = parse(text)
    return stacks[-1] if stacks else ()


def group(stacks: Mapping[int, Stack]) -> tuple[Group, ...]:
    """Ranks by identical main stack, the largest group first."""
    by_stack: dict[Stack, list[int]] = {}
    for rank in sorted(stacks):
        by_stack.setdefault(stacks[rank], []).append(rank)
    groups = [Group(tuple(ranks), stack, is_waiting(stack)) for stack, ranks in by_stack.items()]
    return tuple(sorted(groups, key=lambda one: (-len(one.ranks), one.ranks)))


def is_waiting(stack: Stack) -> bool:
    """Whether the innermost frames wait for another rank or thread rather than work."""
    return any(frame.function in _COLLECTIVES or any(part in frame.file for part in _WAITING) for frame in stack[:3])


def suspects(groups: Sequence[Group], silence_s: Mapping[int, float]) -> tuple[int, ...]:
    """The ranks that the others seem to wait for; empty when the stacks tell nothing.

    Those that are not in a waiting call while others are. Among several, and when all or none wait, the one that has
    been silent for clearly longest.
    """
    working = [rank for one in groups if not one.waiting for rank in one.ranks]
    waiting = [rank for one in groups if one.waiting for rank in one.ranks]
    if working and waiting and len(working) < len(working) + len(waiting):
        return tuple(working) if len(working) <= len(waiting) else _longest_silent(working, silence_s) or tuple(working)
    return _longest_silent(working + waiting, silence_s)


def _longest_silent(ranks: Sequence[int], silence_s: Mapping[int, float]) -> tuple[int, ...]:
    ordered = sorted((silence_s.get(rank, 0.0), rank) for rank in ranks)
    if len(ordered) >= 2 and ordered[-1][0] > 2 * ordered[-2][0] + 1.0:
        return (ordered[-1][1],)
    return ()


def describe(groups: Sequence[Group], suspected: Sequence[int]) -> str:
    """One line: ``3 ranks in all_reduce (distributed_c10d.py:2806), rank 1 in load (train.py:88): suspect rank 1``."""
    parts = []
    for one in groups:
        who = f"rank {one.ranks[0]}" if len(one.ranks) == 1 else f"{len(one.ranks)} ranks"
        parts.append(f"{who} in {_place(one.stack)}")
    line = ", ".join(parts) or "no stacks"
    if suspected:
        line += ": suspect rank" + ("s " if len(suspected) > 1 else " ") + ", ".join(map(str, suspected))
    return line


def _place(stack: Stack) -> str:
    if not stack:
        return "no Python code"
    frame = stack[0]
    return f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"


def render(groups: Sequence[Group]) -> tuple[str, ...]:
    """One block of text for each group, as a traceback reads: outermost first."""
    blocks = []
    for one in groups:
        who = "rank " if len(one.ranks) == 1 else "ranks "
        head = f"stack of {who}{', '.join(map(str, one.ranks))}:"
        lines = [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in reversed(one.stack)]
        blocks.append("\n".join([head, *(lines or ["  (none: not running Python code that can be looked at)"])]))
    return tuple(blocks)
