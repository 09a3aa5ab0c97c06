"""Entry point of ``ftctl``. Exit codes: 0, 1 not found or not reachable, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import click

from ftlaunch.launcher import __version__
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.ftctl._group import LazyGroup


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ftctl")
@click.pass_context
def cli(context: click.Context) -> None:
    """Look at and act on jobs that ftlaunch runs or has run."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(ExitCode.USAGE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``ftctl`` and end the process."""
    # Into "| head": end at once and silently, as any other Unix tool.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        code = cli.main(arguments, prog_name="ftctl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        # Since click 8.2: a group without a command.
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        command = error.ctx.command_path if error.ctx is not None else "ftctl"
        click.echo(f"error: {' '.join(error.format_message().split())} (see {command} --help)", err=True)
        return ExitCode.USAGE
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    main()
