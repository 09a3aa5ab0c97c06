"""``ftctl dump``"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ftlaunch.heartbeat.stackdump import without_our_frames
from ftlaunch.heartbeat.watching.stackread import Frame, StackSnapshot, parse_faulthandler
from ftlaunch.heartbeat.watching.suspects import RankEvidence, group_ranks
from ftlaunch.heartbeat.watching.verdicts import rank_ranges
from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.ftctl._live import ask, find_live, names_a_run
from ftlaunch.launcher.journal.failure_report import clean
from ftlaunch.launcher.wording import shortened

_KERNEL_WIDTH = 200


@click.command()
@names_a_run
@click.option("--rank", "ranks", type=int, multiple=True, metavar="N", help="Only this rank; may be repeated.")
@click.option("--threads", is_flag=True, help="All threads of each rank, not grouped.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(wanted: str | None, ranks: tuple[int, ...], threads: bool, as_json: bool) -> None:
    """Print the Python stacks of all ranks, those at the same place together.

    The ranks go on: each one's own fault handler writes its stacks, and none is stopped, continued or traced. A rank
    that is still starting, stopped, or no Python program has no stack to show; what the kernel tells is printed.
    """
    answer = ask(find_live(wanted), "dump")
    found = [rank for rank in answer["ranks"] if not ranks or rank["rank"] in ranks]
    missing = sorted(set(ranks) - {rank["rank"] for rank in found})
    if missing:
        raise NotFound(f"there is no rank {missing[0]} alive on this node")
    if as_json:
        shown = [{**rank, "threads": _threads(rank["stack"])} for rank in found]
        click.echo(json.dumps({**answer, "ranks": shown}, indent=2))
    elif not found:
        click.echo("no rank is alive now", err=True)
    else:
        for line in _by_rank(found) if threads else _grouped(found):
            click.echo(line)


def _grouped(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    evidence = [RankEvidence(rank["rank"], _snapshot(rank["stack"])) for rank in ranks if rank["stack"]]
    for group in group_ranks(evidence):
        many = len(group.ranks) > 1
        of_all = f" ({len(group.ranks)} of {len(ranks)})" if many else ""
        yield f"rank{'s' if many else ''} {rank_ranges(group.ranks)}{of_all}, most recent call last:"
        yield from _lines(group.frames)
        yield ""
    yield from _silent(ranks)


def _by_rank(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for rank in ranks:
        for number, stack in enumerate(_threads_of(rank["stack"])):
            name = "main thread" if number == 0 else f"thread {number}"
            yield f"rank {rank['rank']} (pid {rank['pid']}), {name}, most recent call last:"
            yield from _lines(stack)
            yield ""
    yield from _silent(ranks)


def _silent(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for rank in ranks:
        if not _snapshot(rank["stack"]).main:
            kernel = shortened(rank["kernel"], _KERNEL_WIDTH)
            yield f"rank {rank['rank']} (pid {rank['pid']}) has no Python stack to show: {kernel}"


def _snapshot(text: str) -> StackSnapshot:
    return parse_faulthandler(without_our_frames(text))


def _threads_of(text: str) -> list[tuple[Frame, ...]]:
    """The stacks of all threads, the main one first."""
    snapshot = _snapshot(text)
    main = snapshot.main_thread
    others = [thread.frames for thread in snapshot.threads if thread is not main]
    return ([main.frames] if main is not None else []) + others


def _lines(stack: Sequence[Frame]) -> list[str]:
    lines = [clean(f'  File "{frame.file}", line {frame.line}, in {frame.function}') for frame in reversed(stack)]
    return lines or ["  (not in Python code)"]


def _threads(text: str) -> list[list[str]]:
    return [[str(frame) for frame in stack] for stack in _threads_of(text)]
