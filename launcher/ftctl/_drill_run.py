"""``ftctl drill run``: a whole drill on this machine."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from ftlaunch.launcher.cli import argv, command_line
from ftlaunch.launcher.config import CommandKind
from ftlaunch.launcher.drill.asserts import MARGIN_S, Budgets
from ftlaunch.launcher.drill.plan import RANDOM_KINDS, Place, Plan, PlanError, join, make_random, settle
from ftlaunch.launcher.drill.plan_file import kind_from, load, parse_text, range_from
from ftlaunch.launcher.drill.result import Setup
from ftlaunch.launcher.errors import FtlaunchError
from ftlaunch.launcher.ftctl import _drill_show as shown

_STEPS = "20..60"
_SEEDS = 1_000_000
_OWN_SETTINGS = {
    "run-dir": "--out DIR keeps its records",
    "rdzv-backend": "--nodes N starts several agents and an etcd",
    "rdzv-endpoint": "--nodes N starts several agents and an etcd",
    "rdzv-id": "each drill is a job of its own",
}


class DrillCommand(click.Command):
    """Takes its own options out from among those of ftlaunch, up to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {name: not getattr(each, "is_flag", False) for each in self.params for name in each.opts}
        takes_value.update(dict.fromkeys(ctx.help_option_names, False))
        own: list[str] = []
        theirs: list[str] = []
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] not in ("-", "--"):
            name, equals, _ = args[position].partition("=")
            mine = name in takes_value
            used = 1 + (takes_value[name] and not equals if mine else _takes_next(args[position], ctx))
            (own if mine else theirs).extend(args[position : position + used])
            position += used
        return super().parse_args(ctx, [*own, "--", *theirs, *args[position:]])


def _takes_next(argument: str, context: click.Context) -> bool:
    """Whether ftlaunch takes what follows for the value of this option."""
    try:
        return argv.scan([argument, "next"]).script is None
    except FtlaunchError as problem:
        raise click.UsageError(str(problem), context) from None


@click.command(cls=DrillCommand, context_settings={"allow_interspersed_args": False})
@click.option("--nproc-per-node", "--nproc_per_node", metavar="N", help="Ranks on each node; passed on to ftlaunch.")
@click.option(
    "--nodes", type=click.IntRange(1, 64), default=1, help="Agents on this machine, with an etcd.  [default: 1]"
)
@click.option("--faults", "files", multiple=True, metavar="FILE", help="A plan, YAML or JSON. May be given again.")
@click.option("--fault", "texts", multiple=True, metavar="FAULT", help="As kill:rank=1,step=70. May be given again.")
@click.option("--random", "drawn", type=int, metavar="N", help="N faults drawn by chance, after those of a plan.")
@click.option("--kinds", metavar="KIND,…", help="For --random.  [default: kill,stop,exception]")
@click.option("--steps", metavar="N..M", help=f"For --random: so many steps between two faults.  [default: {_STEPS}]")
@click.option("--seed", type=click.IntRange(0), help="Makes what is left to chance the same again.  [default: drawn]")
@shown.margin_option
@shown.recover_option
@shown.duration_option("--timeout", "For the drill as a whole.  [default: 10m]")
@click.option("--stop-when-done", is_flag=True, help="End the job after the last fault, not at its own end.")
@click.option("--warm", is_flag=True, help="Let each fault come only when all standbys are ready.")
@click.option("--out", metavar="DIR", help="Keep all records there. Else they are kept only if the drill fails.")
@shown.json_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[FTLAUNCH OPTIONS] SCRIPT [ARGS]...")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Start a job on this machine, make the planned faults happen, and see how each is taken.

    Options of ftlaunch may be given as well. Ends with 0 if every fault was detected and recovered from within its
    budget, no step was lost or made twice in one life, and nothing is left over; with 1 if not, with 2 for a plan or
    options that make no sense. {out} in the arguments is replaced by the directory of the drill, new and empty: a place
    for checkpoints.
    """
    try:
        context.exit(_run(given))
    except FtlaunchError as problem:
        if problem.exit_code == 2:
            raise click.UsageError(str(problem)) from None
        raise click.ClickException(str(problem)) from None


def _run(given: dict[str, Any]) -> int:
    from ftlaunch.launcher.drill.local import LocalDrill

    plan = _plan(given)
    arguments = (
        *(["--nproc-per-node", given["nproc_per_node"]] if given["nproc_per_node"] else []),
        *given["arguments"],
    )
    nproc = _nproc(arguments, given["nodes"])
    seed = next((each for each in (given["seed"], plan.seed) if each is not None), random.randrange(_SEEDS))
    plan = settle(plan, Place(nproc * given["nodes"], given["nodes"]), seed)
    out, temporary = _make_out(given["out"])
    setup = Setup(
        arguments,
        out,
        nproc,
        given["nodes"],
        _budgets(plan, given),
        600.0 if given["timeout"] is None else given["timeout"],
        given["stop_when_done"],
        given["warm"],
    )
    keep = not temporary
    try:
        shown.stop_on_signals()
        report = LocalDrill(plan, setup, shown.tell).run()
        keep = keep or not report.ok
        code = shown.show(report, given["as_json"])
        if keep:
            shown.tell(f"records: {out}; see ftctl report {out}")
        return code
    except shown.Interrupted as interrupt:
        shown.tell("interrupted: everything that the drill had started was ended")
        return interrupt.exit_code
    finally:
        if not keep:
            shutil.rmtree(out, ignore_errors=True)


def _plan(given: dict[str, Any]) -> Plan:
    plans = [load(path) for path in given["files"]]
    plans += [Plan((parse_text(text),)) for text in given["texts"]]
    if given["drawn"] is not None:
        names = given["kinds"]
        kinds = RANDOM_KINDS if names is None else [kind_from(name) for name in names.split(",") if name.strip()]
        plans.append(make_random(given["drawn"], kinds, range_from("--steps", given["steps"] or _STEPS)))
    elif given["kinds"] is not None or given["steps"] is not None:
        raise PlanError("--kinds and --steps go with --random N")
    if not plans:
        raise PlanError("nothing is to go wrong: give --faults FILE, --fault FAULT or --random N")
    return join(plans)


def _budgets(plan: Plan, given: dict[str, Any]) -> Budgets:
    margin_s = next((each for each in (given["margin"], plan.margin_s) if each is not None), MARGIN_S)
    recover_s = given["recover"] if given["recover"] is not None else plan.recover_s
    return Budgets(margin_s, recover_s)


def _nproc(arguments: tuple[str, ...], nodes: int) -> int:
    """How many ranks a node will have; ftlaunch's own word on the arguments, before anything is started."""
    scanned = argv.scan(arguments)
    for given in scanned.given:
        if given.option.name in _OWN_SETTINGS:
            raise PlanError(f"--{given.option.name} is the drill's own to give: {_OWN_SETTINGS[given.option.name]}")
    several = ["--nnodes", str(nodes), "--rdzv-backend", "etcd", "--rdzv-endpoint", "127.0.0.1:2379"]
    _, config = command_line.work_out(argv.scan([*(several if nodes > 1 else []), *arguments]), os.environ)
    if nodes == 1 and config.rendezvous.backend != "local":
        raise PlanError(
            "all nodes of a drill are on this machine: give --nodes N instead of --nnodes and --rdzv options"
        )
    if not config.heartbeat.enabled or config.command.kind is CommandKind.BINARY:
        raise PlanError("faults come at steps that ranks tell: not with --heartbeat off, and not with --no-python")
    return config.workers.nproc


def _make_out(wanted: str | None) -> tuple[Path, bool]:
    """The directory of the drill, and whether it is only a temporary one."""
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="ftlaunch-drill-")), True
    out = Path(os.path.abspath(wanted))
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise PlanError(f"--out {out} is not empty: name a new directory")
    except OSError as error:
        raise PlanError(f"--out {out}: {error.strerror}") from None
    return out, False
