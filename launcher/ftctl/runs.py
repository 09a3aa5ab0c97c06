"""``ftctl runs``"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

import click

from ftlaunch.launcher.ftctl._runs import RunSummary, all_runs, summarise
from ftlaunch.launcher.wording import columns, shortened

_COMMAND_WIDTH = 50
_CAUSE_WIDTH = 60
_HEADER = ("ID", "STATE", "STARTED", "GENERATIONS", "CODE", "COMMAND", "LAST CAUSE")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """List the runs on this machine, newest first.

    Runs with a --run-dir of their own are not listed; give that directory to the other commands.
    """
    runs = [summarise(run) for run in reversed(all_runs())]
    if as_json:
        click.echo(json.dumps([asdict(run) for run in runs], indent=2))
    elif not runs:
        click.echo("no runs yet", err=True)
    else:
        for line in columns([_HEADER, *map(_row, runs)]):
            click.echo(line)


def _row(run: RunSummary) -> tuple[str, ...]:
    return (
        shortened(run.id, _COMMAND_WIDTH + 30),
        run.state,
        run.started[:19],
        str(run.generations),
        "-" if run.exit_code is None else str(run.exit_code),
        shortened(shlex.join(run.command), _COMMAND_WIDTH) or "-",
        shortened(run.last_cause, _CAUSE_WIDTH) or "-",
    )
