"""``ftctl exclude``"""

from __future__ import annotations

import click

from ftlaunch.launcher.ftctl._live import ask, find_live, run_option


@click.command()
@run_option
@click.argument("node")
@click.option("--reason", default="", metavar="TEXT", help="Why; goes into the records, and to who is refused.")
@click.option("--undo", is_flag=True, help="Let the node in again.")
@click.option("--force", is_flag=True, help="Also when too few nodes are left for the job to go on.")
def command(wanted: str | None, node: str, reason: str, undo: bool, force: bool) -> None:
    """Leave NODE, a host or a node id, out of a job on several nodes.

    The generation ends if NODE is in it, and the next one begins without it. Its agent ends with code 75, and later
    ones of that host are refused.
    """
    if undo and force:
        raise click.UsageError("--force does not go with --undo")
    live = find_live(wanted, alone=True)
    answer = ask(live, "exclude", node=node, reason=reason, undo=undo, force=force)
    click.echo(
        f"run {live.path.name}: {answer['name']} is {'let in again' if undo else 'left out'}; {answer['effect']}"
    )
