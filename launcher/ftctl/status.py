"""``ftctl status``"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import click

from ftlaunch.launcher.ftctl import _headline, _ranks
from ftlaunch.launcher.ftctl._errors import Refused
from ftlaunch.launcher.ftctl._live import LiveRun, ask, find_live, names_a_run
from ftlaunch.launcher.ftctl._runs import summarise
from ftlaunch.launcher.journal.rundir import is_running
from ftlaunch.launcher.wording import columns

_TIMEOUT_S = 10.0


@click.command()
@names_a_run
@click.option("-w", "--watch", is_flag=True, help="Show it in place until the job ends.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    help="For --watch.",
)
@click.option("--all", "all_ranks", is_flag=True, help="Every rank in a row of its own, however many there are.")
@click.option("--this-node", is_flag=True, help="Only the node of the agent that is asked; the others are left alone.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; with --watch one per line.")
def command(wanted: str | None, watch: bool, interval: float, all_ranks: bool, this_node: bool, as_json: bool) -> None:
    """Show a running job: all its nodes and ranks, how long they may be silent, its progress, its restarts.

    SILENT / LIMIT is how long a rank has shown no progress and after how long it counts as stalled. A rate is that of
    the last steps. FAILED is how often a rank was the first to fail.
    """
    live = find_live(wanted)

    source = _Source(live, this_node)
    if not watch:
        _show(source.fetch(), as_json, all_ranks)
        return
    try:
        _watch(source.fetch, interval, as_json)
    except Refused:
        if is_running(live.path):
            raise
        _say_end(live)


class _Source:
    """Asks one agent again and again. One that does not answer for a while is no reason to stop watching."""

    def __init__(self, live: LiveRun, this_node: bool) -> None:
        self._live = live
        self._this_node = this_node
        self._last: Mapping[str, Any] | None = None

    def fetch(self) -> Mapping[str, Any]:
        """The status now; the last one, with ``trouble``, while the agent lives but does not answer.

        Raises :class:`Refused` for the first question, and once the job has ended.
        """
        try:
            status: Mapping[str, Any] = ask(self._live, "status", _TIMEOUT_S, this_node=self._this_node)
        except Refused as error:
            if self._last is None or not is_running(self._live.path):
                raise
            return {**self._last, "trouble": error.format_message()}
        self._last = status
        return status


def _show(status: Mapping[str, Any], as_json: bool, all_ranks: bool) -> None:
    if as_json:
        click.echo(json.dumps(status, indent=2))
    elif sys.stdout.isatty():
        from ftlaunch.launcher.ftctl import _screen

        _screen.show_once(status, all_ranks)
    else:
        click.echo("\n".join(_text(status)))


def _watch(fetch: Callable[[], Mapping[str, Any]], interval_s: float, as_json: bool) -> None:
    if sys.stdout.isatty() and not as_json:
        from ftlaunch.launcher.ftctl import _screen

        _screen.watch(fetch, interval_s)
    wake = threading.Event()
    while True:
        status = fetch()
        click.echo(json.dumps(status) if as_json else "\n".join(_text(status)) + "\n")
        wake.wait(interval_s)


def _text(status: Mapping[str, Any]) -> list[str]:
    """Every rank in a row of its own: this is for pipes, where people count and search."""
    with_hosts = len(status["nodes"]) > 1
    rows = _ranks.rows(status["ranks"], len(status["ranks"]), with_hosts)
    return _headline.plain(status, columns([_ranks.header(with_hosts), *(row.cells for row in rows)]))


def _say_end(live: LiveRun) -> None:
    ended = summarise(live.path)
    code = f" with code {ended.exit_code}" if ended.exit_code is not None else ""
    click.echo(f"run {live.path.name} has ended{code}: {ended.state}", err=True)
