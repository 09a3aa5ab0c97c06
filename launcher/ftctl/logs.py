"""``ftctl logs``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import click

from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.ftctl._logfiles import RankLog, Tail, generations, rank_logs
from ftlaunch.launcher.ftctl._runs import find_run
from ftlaunch.launcher.host.growth import SURE_S, Waiter
from ftlaunch.launcher.journal.rundir import is_running, read_run_file


@click.command()
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended, into later generations too.")
@click.option("--rank", "ranks", type=int, multiple=True, metavar="N", help="Only this rank; may be repeated.")
@click.option("--generation", type=int, metavar="G", help="Only this generation. Default: the last one.")
@click.option("--out", is_flag=True, help="Only stdout.")
@click.option("--err", is_flag=True, help="Only stderr.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each file.")
def command(
    run: str | None,
    follow: bool,
    ranks: tuple[int, ...],
    generation: int | None,
    out: bool,
    err: bool,
    tail: int | None,
) -> None:
    """Print what the ranks of RUN wrote: its name, the beginning of it, or its directory. Default: the latest run.

    With several files each line begins with its rank and stream.
    """
    folder = find_run(run)
    streams = [name for name, wanted in (("out", out), ("err", err)) if wanted or out == err]
    reader = _Reader(folder, ranks, streams, tail, sys.stdout.buffer)
    reader.run(generation, follow)


class _Reader:
    """Prints the files of one generation after the other."""

    def __init__(
        self, run: Path, ranks: Sequence[int], streams: Sequence[str], tail: int | None, out: BinaryIO
    ) -> None:
        facts = read_run_file(run) or {}
        self._run = run
        self._root = Path(str(facts.get("logs") or run / "logs"))
        self._ranks = ranks
        self._streams = streams
        self._tail = tail
        self._out = out
        self._prefixed = False
        self._written = False

    def run(self, generation: int | None, follow: bool) -> None:
        """Print; raises :class:`NotFound` when there is nothing like that."""
        known = generations(self._root)
        if not known and not (follow and is_running(self._run)):
            raise NotFound(f"run {self._run.name} has no log files at {self._root}")
        if generation is not None and generation not in known:
            raise NotFound(
                f"run {self._run.name} has no generation {generation}; the last one is {max(known, default=-1)}"
            )
        if not follow:
            number = max(known) if generation is None else generation
            self._print(known[number])
            if not self._written and self._tail != 0:
                what = " and ".join(f"std{name}" for name in self._streams)
                who = f" by rank {', '.join(map(str, self._ranks))}" if self._ranks else ""
                click.echo(f"nothing was written to {what}{who} in generation {number} ({known[number]})", err=True)
            return
        self._follow(generation)

    def _print(self, folder: Path) -> None:
        logs = self._chosen(folder)
        self._prefixed = len(logs) > 1
        for log in logs:
            tail = Tail(log.path, self._tail)
            self._copy(log, tail, end=True)
            tail.close()

    def _chosen(self, folder: Path) -> list[RankLog]:
        logs = [log for log in rank_logs(folder) if log.stream in self._streams]
        chosen = [log for log in logs if not self._ranks or log.rank in self._ranks]
        missing = sorted(set(self._ranks) - {log.rank for log in chosen})
        if missing:
            there = sorted({log.rank for log in logs})
            raise NotFound(f"there is no log of rank {missing[0]} in {folder}; there are {_span(there)}")
        return chosen

    def _copy(self, log: RankLog, tail: Tail, end: bool = False) -> None:
        prefix = f"[{log.rank} {log.stream}] ".encode() if self._prefixed else b""
        for line in tail.read(end):
            self._out.write(prefix + line)
            self._written = True
        self._out.flush()

    def _follow(self, only: int | None) -> None:
        current = only if only is not None else max(generations(self._root), default=None)
        while True:
            if current is None:
                current = self._wait_for_generation(lambda known: max(known, default=None))
            else:
                self._follow_generation(current, only)
                if only is not None:
                    return
                before = current
                current = self._wait_for_generation(
                    lambda known, before=before: min((n for n in known if n > before), default=None)  # type: ignore[misc]
                )
                # What follows is shown from its first line, whatever was asked for the one that ran already.
                self._tail = None
            if current is None:
                return

    def _wait_for_generation(self, pick: Callable[[dict[int, Path]], int | None]) -> int | None:
        """The next generation's number; ``None`` once the job has ended without one."""
        waiter = Waiter()
        waiter.watch(self._root if self._root.exists() else self._run)
        try:
            while True:
                over = not is_running(self._run)
                found = pick(generations(self._root))
                if found is not None or over:
                    return found
                waiter.wait(SURE_S)
        finally:
            waiter.close()

    def _follow_generation(self, number: int, only: int | None) -> None:
        """Until a later one is there, or the job has ended; whatever was written till then is printed."""
        folder = generations(self._root)[number]
        waiter = Waiter()
        waiter.watch(folder)
        tails: dict[RankLog, Tail] = {}
        self._prefixed = len(self._ranks) != 1 or len(self._streams) != 1
        try:
            while True:
                over = not is_running(self._run) or any(later > number for later in generations(self._root))
                for log in rank_logs(folder):
                    if log.stream in self._streams and (not self._ranks or log.rank in self._ranks):
                        tails.setdefault(log, Tail(log.path, self._tail))
                for log, tail in tails.items():
                    self._copy(log, tail, end=over)
                if over:
                    return
                waiter.wait(SURE_S)
        finally:
            waiter.close()
            for tail in tails.values():
                tail.close()


def _span(ranks: Sequence[int]) -> str:
    if not ranks:
        return "none"
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
