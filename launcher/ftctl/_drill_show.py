"""How ``ftctl drill`` shows its results, and what its options are made of."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from ftlaunch.launcher.cli.values import duration
from ftlaunch.launcher.drill import told
from ftlaunch.launcher.drill.result import Report
from ftlaunch.launcher.wording import columns

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The drill itself was told to end. Goes through everything that clears up."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum


def read_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds, or a number with a unit; the callback of an option."""
    try:
        return None if value is None else duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, not {value!r}", context, parameter) from None


def duration_option(name: str, text: str) -> Callable[[Any], Any]:
    """An option that takes a time."""
    return click.option(name, callback=read_duration, metavar="TIME", help=text)


detect_option = duration_option("--detect", "Budget of detection; else by kind, plus --margin.")
margin_option = duration_option("--margin", "Added to detection budgets, for a busy machine.  [default: 250ms]")
recover_option = duration_option("--recover", "Budget of recovery.  [default: 5s]")
json_option: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def tell(line: str) -> None:
    """One line about what goes on."""
    click.echo(line, err=True)


def stop_on_signals() -> None:
    """Raise :class:`Interrupted` at the first signal that ends a program, and hear no other while all is cleared up."""

    def stop(signum: int, frame: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    for signum in _SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, stop)


def show(report: Report, as_json: bool) -> int:
    """Print the table or the JSON; returns the exit code."""
    if as_json:
        click.echo(json.dumps(told.as_json(report), indent=2))
    elif sys.stdout.isatty():
        _show_rich(report)
    else:
        click.echo("\n".join([*columns([told.HEADER, *told.rows(report)]), "", *told.notes(report)]))
    return 0 if report.ok else 1


def _show_rich(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in told.HEADER:
        shown.add_column(name, no_wrap=name == "FAULT", justify="left")
    for row, finding in zip(told.rows(report), report.findings, strict=True):
        style = "green" if finding.ok else "bold red"
        shown.add_row(*(Text(cell) for cell in row[:-1]), Text(row[-1], style=style))
    console = Console()
    console.print(shown)
    console.print()
    *lines, last = told.notes(report)
    for line in lines:
        console.print(Text(line, style="red"))
    console.print(Text(last, style="green" if report.ok else "bold red"))
