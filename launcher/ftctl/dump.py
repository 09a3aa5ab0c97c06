"""``ftctl dump``"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ftlaunch.heartbeat import stacks
from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.ftctl._live import ask, find_live, run_option
from ftlaunch.launcher.ftctl._table import shortened
from ftlaunch.launcher.report import clean, rank_ranges

_KERNEL_WIDTH = 200


@click.command()
@run_option
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
    mains = {rank["rank"]: stacks.main_stack(rank["stack"]) for rank in ranks if rank["stack"]}
    for group in stacks.group(mains):
        many = len(group.ranks) > 1
        of_all = f" ({len(group.ranks)} of {len(ranks)})" if many else ""
        yield f"rank{'s' if many else ''} {rank_ranges(group.ranks)}{of_all}, most recent call last:"
        yield from _lines(group.stack)
        yield ""
    yield from _silent(ranks)


def _by_rank(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for rank in ranks:
        found = stacks.parse(rank["stack"])
        for number, stack in enumerate(reversed(found)):
            name = "main thread" if number == 0 else f"thread {number}"
            yield f"rank {rank['rank']} (pid {rank['pid']}), {name}, most recent call last:"
            yield from _lines(stack)
            yield ""
    yield from _silent(ranks)


def _silent(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for rank in ranks:
        if not stacks.main_stack(rank["stack"]):
            kernel = shortened(rank["kernel"], _KERNEL_WIDTH)
            yield f"rank {rank['rank']} (pid {rank['pid']}) has no Python stack to show: {kernel}"


def _lines(stack: stacks.Stack) -> list[str]:
    lines = [clean(f'  File "{frame.file}", line {frame.line}, in {frame.function}') for frame in reversed(stack)]
    return lines or ["  (not in Python code)"]


def _threads(text: str) -> list[list[str]]:
    return [[str(frame) for frame in stack] for stack in stacks.parse(text)]
