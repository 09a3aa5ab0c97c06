"""The command line of ``ftlaunch``: arguments and environment in, one frozen configuration out.

click is the parser of what stands before the script and writes the help page; where the script begins is decided
before (:mod:`.argv`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ftlaunch.launcher import __version__
from ftlaunch.launcher.cli import argv as argv_scanner
from ftlaunch.launcher.cli import options, print_config
from ftlaunch.launcher.cli import settings as setting_table
from ftlaunch.launcher.cli.machine import Machine, this_machine
from ftlaunch.launcher.cli.resolve import resolve
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.errors import FtlaunchError, UsageError


@dataclass(frozen=True)
class Parsed:
    """A usable command line. ``notes`` are for the user's eyes, one line each; none of them is an error.

    ``infos`` are for those who ask for them with ``--log-level INFO``.
    """

    config: Config
    notes: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


def parse(argv: Sequence[str], environ: Mapping[str, str], machine: Machine | None = None) -> Parsed:
    """Parse the arguments after the program's name.

    ``--help``, ``--version`` and ``--print-config`` print to stdout and raise ``SystemExit(0)``. Whatever is wrong
    raises :class:`UsageError` with one line to show. Nothing is spawned, and nothing of the user's is imported.
    """
    scanned = argv_scanner.scan(argv)
    asked = {given.option.name for given in scanned.given}
    if "help" in asked:
        _finish(help_page())
    if "version" in asked:
        _finish(f"ftlaunch {__version__}\n")
    settings, config = work_out(scanned, environ, machine)
    if settings["print-config"]:
        _finish(print_config.render(settings, config))
    return Parsed(config, tuple(settings.notes), tuple(settings.infos))


def work_out(
    scanned: argv_scanner.Scanned, environ: Mapping[str, str], machine: Machine | None = None
) -> tuple[setting_table.Settings, Config]:
    """Every setting with its origin, and what follows from all of them. Raises :class:`UsageError`."""
    values, texts = _parse_options(scanned.given)
    settings = setting_table.gather(values, texts, environ)
    return settings, resolve(settings, scanned.script, scanned.script_args, environ, machine or this_machine())


def help_page() -> str:
    """The text of ``--help``, options by group, as wide as the terminal."""
    from ftlaunch.launcher.cli.click_command import build

    command = build()
    with command.make_context("ftlaunch", []) as context:
        return command.get_help(context) + "\n"


def _parse_options(given: Sequence[argv_scanner.Given]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and texts of the options on the command line, by name."""
    if not given:
        return {}, {}
    import click

    from ftlaunch.launcher.cli.click_command import build

    named = {item.option.name: item.option for item in given}
    try:
        context = build(tuple(named.values())).make_context("ftlaunch", [item.token() for item in given])
    except click.ClickException as error:
        raise UsageError(" ".join(error.format_message().split())) from None
    parts = {name: context.params[name.replace("-", "_")] for name in named}
    values = {name: _joined(option, parts[name]) for name, option in named.items()}
    return values, {name: _typed(name, given) for name in named}


def _joined(option: options.Option, value: Any) -> Any:
    return setting_table.joined(option, value) if option.repeatable else value


def _typed(name: str, given: Sequence[argv_scanner.Given]) -> str:
    found = [item for item in given if item.option.name == name]
    if found[-1].value is None:
        return "yes"
    return ",".join(item.value or "" for item in found) if found[0].option.repeatable else found[-1].value


def _finish(text: str) -> NoReturn:
    """Print and end with 0; a reader that has gone away (``| head``) is not an error, nor is a closed stdout.

    Raises :class:`FtlaunchError` when the text cannot be written.
    """
    if sys.stdout is None:
        raise SystemExit(0)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes again at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise FtlaunchError(f"stdout cannot be written to: {error.strerror}") from None
    raise SystemExit(0)
