"""``ftctl drill kill`` and the like: one fault in a job that runs already."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ftlaunch.launcher.drill.asserts import MARGIN_S, Budgets
from ftlaunch.launcher.drill.plan import Fault, Kind, require_sense
from ftlaunch.launcher.errors import FtlaunchError
from ftlaunch.launcher.ftctl import _drill_show as shown
from ftlaunch.launcher.ftctl._errors import Refused
from ftlaunch.launcher.ftctl._live import LiveRun, ask, find_live, run_option
from ftlaunch.launcher.journal.rundir import read_run_file

_HELP = {
    Kind.KILL: "SIGKILL to a rank.",
    Kind.STOP: "SIGSTOP to a rank.",
    Kind.SPIN: "Let a rank run in an endless loop.",
    Kind.EXCEPTION: "Let a rank raise in its training loop.",
    Kind.OOM: "Let a rank run out of memory, in a control group of its own.",
    Kind.DISK_FULL: "Let every further write of a rank to a file fail.",
    Kind.AGENT_KILL: "SIGKILL to the agent of this node: ends the job here.",
    Kind.NODE_LOSS: "Everything of the job on this node is gone at once.",
    Kind.NET_CUT: "Cut a node off etcd; only in ftctl drill run --nodes N.",
    Kind.ETCD_STOP: "Stop etcd for a while; only in ftctl drill run --nodes N.",
}
_IN_RANK = "Only in a job that was started with FTLAUNCH_DRILLS=DIRECTORY in its environment."


def make_command(kind: Kind, of_rank: bool) -> click.Command:
    """The subcommand for one kind of fault."""

    def call(**given: Any) -> None:
        click.get_current_context().exit(_drill(_fault(kind, given), given))

    options = [
        click.option("--rank", type=click.IntRange(0), required=of_rank, help="The rank, by its global number."),
        click.option("--node", type=click.IntRange(0), hidden=of_rank, help="The node; must be the one that is asked."),
        click.option(
            "--at-step", type=click.IntRange(0), help="At this step of the script, or the first one after it."
        ),
        click.option("--after-steps", type=click.IntRange(0), help="After so many steps of the rank's process."),
        shown.duration_option("--after", "After this time; else at once."),
        shown.duration_option("--every", "Again after this time, with --times."),
        click.option("--times", type=click.IntRange(1), default=1, help="How often.  [default: once]"),
        click.option("--no-wait", is_flag=True, help="Arm it and return, instead of looking how it is taken."),
        shown.detect_option,
        shown.margin_option,
        shown.recover_option,
        shown.json_option,
        run_option,
    ]
    for option in reversed(options):
        call = option(call)
    details = _IN_RANK if kind in (Kind.SPIN, Kind.EXCEPTION, Kind.OOM) else ""
    return click.command(help=f"{_HELP[kind]}\n\n{details}", short_help=_HELP[kind])(call)


def _fault(kind: Kind, given: dict[str, Any]) -> Fault:
    fault = Fault(
        kind,
        rank=given["rank"],
        node=given["node"],
        at_step=given["at_step"],
        after_steps=given["after_steps"],
        after_s=given["after"],
        every_s=given["every"],
        times=given["times"],
        detect_s=given["detect"],
        recover_s=given["recover"],
    )
    try:
        require_sense(fault)
    except FtlaunchError as problem:
        raise click.UsageError(str(problem)) from None
    return fault


def _drill(fault: Fault, given: dict[str, Any]) -> int:
    from ftlaunch.launcher.drill.attached import Attached

    live = find_live(given["wanted"], alone=True)
    marker = _marker(live)
    budgets = Budgets(MARGIN_S if given["margin"] is None else given["margin"])
    attached = Attached(live.path, lambda what, **more: ask(live, what, **more), fault, budgets, shown.tell)
    name = attached.arm()
    named = replace(fault, id=name)
    shown.tell(f"run {live.path.name}: armed {fault.kind.value} of {named.target}, {named.moment}")
    if given["no_wait"]:
        return 0
    shown.stop_on_signals()
    try:
        report = attached.follow(marker)
    except shown.Interrupted as interrupt:
        with contextlib.suppress(Refused):
            attached.withdraw()
        shown.tell("interrupted: what had not happened yet was taken back")
        return interrupt.exit_code
    return shown.show(report, given["as_json"])


def _marker(live: LiveRun) -> str:
    """What everything that the run has started carries in its environment."""
    marker = (read_run_file(live.path) or {}).get("mark")
    if isinstance(marker, str):
        return marker
    for rank in ask(live, "status").get("ranks", []):
        with contextlib.suppress(OSError):
            for word in Path(f"/proc/{rank['pid']}/environ").read_bytes().split(b"\0"):
                if word.startswith(b"FTLAUNCH_MARK="):
                    return os.fsdecode(word.partition(b"=")[2])
    return ""
