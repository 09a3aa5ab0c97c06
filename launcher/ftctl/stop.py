"""``ftctl stop``"""

from __future__ import annotations

import click

from ftlaunch.launcher.ftctl._live import ask, find_live, names_a_run


@click.command()
@names_a_run
@click.option("--reason", default="", metavar="TEXT", help="Why; goes into the records.")
@click.option("--this-node", is_flag=True, help="Only this node's part, as SIGTERM to its ftlaunch would.")
def command(wanted: str | None, reason: str, this_node: bool) -> None:
    """End the job: ranks on all nodes get SIGTERM and the time of --shutdown-timeout to save.

    It ends with code 143; on one node with 0 when all ranks do. Returns at once, with several nodes when all have
    heard of it, after 2 seconds at most.
    """
    live = find_live(wanted, alone=True)
    told = ask(live, "stop", reason=reason, this_node=this_node)
    nodes, silent = told.get("nodes", 1), told.get("silent", 0)
    where = f" on {nodes} nodes" if nodes > 1 else ""
    later = ""
    if silent is None:
        later = "; the other nodes follow when this one has left"
    elif silent:
        later = f"; {silent} more did not answer, and will follow when these have left"
    click.echo(f"run {live.path.name}: stopping{where}{later}")
