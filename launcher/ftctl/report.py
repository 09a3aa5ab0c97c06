"""``ftctl report``"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.ftctl._runs import find_run, runs_inside
from ftlaunch.launcher.history.read import read_history
from ftlaunch.launcher.history.summary import summary_line
from ftlaunch.launcher.history.tables import first_rank
from ftlaunch.launcher.history.text import render_text
from ftlaunch.launcher.history.together import Job, put_together

_FILE = "report.html"


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--html", "target", metavar="FILE", help="Write the page there; - for standard output.")
@click.option("--text", "as_text", is_flag=True, help="Print the report as text, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as one JSON object, and write nothing.")
def command(runs: tuple[str, ...], target: str | None, as_text: bool, as_json: bool) -> None:
    """Tell how a job went: goodput, each incident with its phases, what was lost and why.

    RUN: its name, the beginning of it, or its directory; of a job on several nodes, the directories of all of them
    make one report, or one that holds them all, as drills keep them. Default: the latest run. Without options the page
    goes to report.html in the (first) run's directory.
    """
    if sum((as_text, as_json, target is not None)) > 1:
        raise click.UsageError("--html, --text and --json exclude each other")
    folders = [folder for run in runs or (None,) for folder in _folders(run)]
    job = put_together([_read(folder) for folder in dict.fromkeys(folders)])
    if as_text:
        click.echo(render_text(job), nl=False)
    elif as_json:
        click.echo(json.dumps(numbers(job), indent=2))
    else:
        _write_page(job, folders[0] / _FILE if target is None else Path(target))


def _folders(run: str | None) -> list[Path]:
    inside = runs_inside(Path(run)) if run is not None else []
    return inside or [find_run(run)]


def numbers(job: Job) -> dict[str, Any]:
    """What a program wants to know; seconds, and shares from 0 to 1."""
    history, told = job.history, job.account
    return {
        "run": history.run_id,
        "finished": history.finished,
        "exit_code": history.exit_code,
        "wall_s": round(told.wall_s, 6),
        "training_goodput": told.training,
        "infrastructure_goodput": told.infrastructure,
        "steps": told.steps_done if told.steps else None,
        "steps_repeated": told.steps_repeated if told.steps else None,
        "restarts": len(history.restarts),
        "lost_s": round(told.lost_s, 6),
        "time_s": {use.value: round(spent, 6) for use, spent in told.by_use.items()},
        "lost_by_cause": {
            cause: {"incidents": count, "seconds": round(lost, 6)}
            for cause, (count, lost) in told.lost_by_cause().items()
        },
        "incidents": [
            {
                "generation": loss.incident.generation,
                "rank": first_rank(loss),
                "host": loss.incident.cause.host,
                "cause": loss.cause,
                "reason": loss.incident.cause.reason,
                "drills": list(loss.drills),
                "diagnosis": None if loss.diagnosed is None else asdict(loss.diagnosed),
                "at_s": round(loss.at_s, 6),
                "recovery_s": None if loss.recovery_s is None else round(loss.recovery_s, 6),
                "phases_s": {use.value: round(spent, 6) for use, spent in loss.phases_s.items()},
                "repeated_steps": loss.repeated_steps,
                "lost_s": round(loss.lost_s, 6),
            }
            for loss in told.losses
        ],
    }


def _read(folder: Path) -> Any:
    try:
        return read_history(folder)
    except OSError as error:
        raise NotFound(f"cannot read the events of {folder}: {error.strerror}") from None


def _write_page(job: Job, target: Path) -> None:
    from ftlaunch.launcher.history.html import NO_PICTURES, render_html

    pictures = _draw(job)
    # The text of an exception may hold lone surrogates, which no encoder takes.
    page = render_html(job, pictures).encode(errors="backslashreplace").decode()
    if str(target) == "-":
        click.echo(page, nl=False)
        return
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise NotFound(f"cannot write {target}: {error.strerror}; name another place with --html") from None
    click.echo(summary_line(job.history, job.account))
    click.echo(str(target))
    if pictures is None:
        click.echo(NO_PICTURES, err=True)


def _draw(job: Job) -> dict[str, str] | None:
    # Without a place for its cache it says so at length; the pictures are the same.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        from ftlaunch.launcher.history.pictures import draw
    except ImportError:
        return None
    return draw(job)
