"""``ftctl events``"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.ftctl._follow import follow_lines
from ftlaunch.launcher.ftctl._runs import find_run
from ftlaunch.launcher.history.event_line import one_line
from ftlaunch.launcher.journal.records import EVENTS_FILE, parse_event, read_events
from ftlaunch.launcher.journal.rundir import is_running

_LAST_EVENT = "job_finished"


@click.command()
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--event", "names", multiple=True, metavar="NAME", help="Only events of this name; may be repeated.")
def command(run: str | None, follow: bool, as_json: bool, names: tuple[str, ...]) -> None:
    """Print the events of RUN: its name, the beginning of it, or its directory. Default: the latest run."""
    folder = find_run(run)
    path = folder / EVENTS_FILE
    try:
        for event in _follow(folder, path) if follow else read_events(path):
            if not names or event["event"] in names:
                # Written at once: whoever reads our pipe waits for this event, not for a full buffer.
                click.echo(json.dumps(event) if as_json else one_line(event))
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from None


def _follow(folder: Path, path: Path) -> Iterator[Mapping[str, Any]]:
    # Until the agent has gone, too: one that was killed never says that the job has finished.
    for line in follow_lines(path, ended=lambda: not is_running(folder)):
        if (event := parse_event(line)) is not None:
            yield event
            if event["event"] == _LAST_EVENT:
                return
