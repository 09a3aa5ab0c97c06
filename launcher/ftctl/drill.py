"""``ftctl drill``"""

from __future__ import annotations

import click

from ftlaunch.launcher.drill.plan import RANK_KINDS, Kind
from ftlaunch.launcher.ftctl import _drill_job, _drill_run


class DrillGroup(click.Group):
    """``ftctl drill OPTIONS… SCRIPT`` means ``ftctl drill run OPTIONS… SCRIPT``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DrillGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make something go wrong on purpose, and see whether the job takes it well.

    "run" starts a job on this machine, carries out a plan of faults, and ends with 0 only if each was detected and
    recovered from in time, no step was lost and nothing is left. The others hit a job that runs already.
    """


command.add_command(_drill_run.command, "run")
for _kind in Kind:
    command.add_command(_drill_job.make_command(_kind, of_rank=_kind in RANK_KINDS), _kind.value)
