"""``ftctl restart``"""

from __future__ import annotations

import click

from ftlaunch.launcher.ftctl._live import ask, find_live, names_a_run


@click.command()
@names_a_run
@click.option("--reason", default="", metavar="TEXT", help="Why; goes into the records.")
def command(wanted: str | None, reason: str) -> None:
    """End the present generation and start the next one.

    Refused when the restart policy would end the job instead. Returns at once: see ftctl status, ftctl events -f.
    """
    live = find_live(wanted, alone=True)
    answer = ask(live, "restart", reason=reason)
    click.echo(f"run {live.path.name}: generation {answer['generation']} is being restarted")
