"""``ftctl stop``"""

from __future__ import annotations

import click

from ftlaunch.launcher.ftctl._live import ask, find_live, run_option


@click.command()
@run_option
@click.option("--reason", default="", metavar="TEXT", help="Why; goes into the records.")
def command(wanted: str | None, reason: str) -> None:
    """End the job as SIGTERM to ftlaunch would: ranks get SIGTERM and the time of --shutdown-timeout to save.

    It ends with code 143, or with 0 when all ranks do. Returns at once.
    """
    live = find_live(wanted, alone=True)
    ask(live, "stop", reason=reason)
    click.echo(f"run {live.path.name}: stopping")
