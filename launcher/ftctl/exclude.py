"""``ftctl exclude``"""

from __future__ import annotations

import click

from ftlaunch.launcher.ftctl._live import ask, find_live, run_option


@click.command()
@run_option
@click.argument("node")
@click.option("--reason", default="", metavar="TEXT", help="Why; goes into the records.")
def command(wanted: str | None, node: str, reason: str) -> None:
    """Keep NODE out of the next generations of a job on several nodes."""
    live = find_live(wanted, alone=True)
    ask(live, "exclude", node=node, reason=reason)
    click.echo(f"run {live.path.name}: {node} is left out from now on")
