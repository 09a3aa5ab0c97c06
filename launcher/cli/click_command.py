"""The option table as a click command. Imported only when a command line is parsed or help is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ftlaunch.launcher.cli import options
from ftlaunch.launcher.cli.options import Option
from ftlaunch.launcher.cli.settings import parse_value

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    # Only the newest releases of click let it be subscripted.
    _ParamType = click.ParamType

_INTRO = """Launch SCRIPT in several ranks, watch them, and bring the job back when one of them dies or hangs.

Everything after SCRIPT goes to it untouched. Options that torchrun has keep its names, its PET_ environment variables
and its unambiguous abbreviations; every option may be written with _ for -. The command line beats the environment,
which beats the default. DURATION is seconds, or a number with a unit: 500ms, 10s, 5m, 1h."""


def build(chosen: tuple[Option, ...] = options.OPTIONS) -> Command:
    """A command with these options. Takes 1 ms for all of them."""
    return Command("ftlaunch", params=[_parameter(option) for option in chosen], help=_INTRO, add_help_option=False)


class Command(click.Command):
    """Shows the options by group. The script is not a parameter: it has been cut off before."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The script and its arguments too."""
        formatter.write_usage("ftlaunch", "[OPTIONS] SCRIPT [ARGUMENTS]...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group, in the order of the table."""
        for group in options.GROUPS:
            rows = [_help_row(option) for option in options.OPTIONS if option.group == group]
            with formatter.section(group):
                formatter.write_dl(rows)


class _Value(_ParamType):
    """A value of the table. Errors are the table's own, one line each."""

    def __init__(self, option: Option) -> None:
        self.name = option.name
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse text; what was parsed already stays."""
        return parse_value(self._option, f"--{self._option.name}", value) if isinstance(value, str) else value


def _parameter(option: Option) -> click.Option:
    names = [f"--{option.name}", option.name.replace("-", "_"), *([f"-{option.short}"] if option.short else [])]
    if option.flag:
        return click.Option(names, is_flag=True)
    return click.Option(names, type=_Value(option), multiple=option.repeatable, metavar=option.metavar)


def _help_row(option: Option) -> tuple[str, str]:
    names = f"-{option.short}, --{option.name}" if option.short else f"--{option.name}"
    facts = [f"env {option.env[0]}"] if option.env else []
    if option.default:
        facts.append(f"default {option.default}")
    return (
        names if option.flag else f"{names} {option.metavar}",
        f"{option.help}  [{', '.join(facts)}]" if facts else option.help,
    )
