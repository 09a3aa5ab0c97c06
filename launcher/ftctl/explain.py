"""``ftctl explain``"""

from __future__ import annotations

import json
from pathlib import Path

import click

from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.ftctl._logfiles import Tail, generations, rank_logs
from ftlaunch.launcher.ftctl._runs import find_run
from ftlaunch.launcher.ftctl._story import as_json, chapters, tell
from ftlaunch.launcher.history.goodput import account
from ftlaunch.launcher.history.model import History
from ftlaunch.launcher.history.read import read_history
from ftlaunch.launcher.journal.rundir import is_running, read_run_file

_STDERR_LINES = 20


@click.command()
@click.argument("run", required=False)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N generations.")
@click.option("--full", is_flag=True, help="Evidence and tracebacks as long as they are.")
@click.option("--json", "json_wanted", is_flag=True, help="Print a JSON object.")
def command(run: str | None, last: int | None, full: bool, json_wanted: bool) -> None:
    """Tell what happened in RUN, in order: what ended each generation, how the recovery went, what would have helped.

    RUN: its name, the beginning of it, or its directory. Default: the latest run.
    """
    folder = find_run(run)
    try:
        history = read_history(folder)
    except OSError as error:
        raise NotFound(f"cannot read the events of {folder}: {error.strerror}") from None
    accounted = account(history)
    told = chapters(history, accounted, _stderr_tails(folder, history))[-last if last else 0 :]
    if json_wanted:
        click.echo(json.dumps(as_json(history, told), indent=2))
    else:
        for line in tell(history, accounted, told, is_running(folder), full):
            click.echo(line)


def _stderr_tails(run: Path, history: History) -> dict[int, str]:
    """What the first failed rank of each generation wrote last, where it did not say why it ended."""
    facts = read_run_file(run) or {}
    folders = generations(Path(str(facts.get("logs") or run / "logs")))
    found = {}
    for number, incident in history.incidents.items():
        cause = incident.cause
        if cause.exception or cause.rank is None or number not in folders:
            continue
        # Laid out as torchrun does, files have the local rank's number.
        own = {cause.rank} if folders[number].name.isdecimal() else {cause.local_rank}
        for log in rank_logs(folders[number]):
            if log.stream == "err" and log.rank in own:
                tail = Tail(log.path, _STDERR_LINES)
                found[number] = b"".join(tail.read(end=True)).decode("utf-8", "replace")
                tail.close()
    return found
