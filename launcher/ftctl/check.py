"""``ftctl check``"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ftlaunch.launcher.cli import argv as argv_scanner
from ftlaunch.launcher.cli import command_line, print_config
from ftlaunch.launcher.cli.settings import Settings, Source
from ftlaunch.launcher.config import CommandKind, Config
from ftlaunch.launcher.errors import FtlaunchError
from ftlaunch.launcher.ftctl._check_network import check_network
from ftlaunch.launcher.ftctl._check_node import check_node
from ftlaunch.launcher.ftctl._check_settings import check_settings
from ftlaunch.launcher.ftctl._finding import Finding, Level, error, ok
from ftlaunch.launcher.journal.failure_report import clean
from ftlaunch.launcher.wording import counted, shortened

_WORDS = {Level.OK: "ok", Level.NOTE: "note", Level.WARNING: "WARNING", Level.ERROR: "ERROR"}
_SOURCE_LIMIT = 4 << 20


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object. Comes first, before ftlaunch's options.")
@click.option("--all-settings", is_flag=True, help="Every setting, not only those that are given. Comes first, too.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[FTLAUNCH OPTIONS] SCRIPT [ARGS]...")
@click.pass_context
def command(context: click.Context, as_json: bool, all_settings: bool, arguments: tuple[str, ...]) -> None:
    """Look whether this machine and these options are fit for a job, without starting anything.

    Give it what you would give ftlaunch. Ends with 0, or with 1 when the job could not run like this, and with 2 for
    options that ftlaunch would refuse.
    """
    try:
        settings, config = command_line.work_out(argv_scanner.scan(list(arguments)), os.environ)
    except FtlaunchError as problem:
        raise click.UsageError(str(problem)) from None
    findings = [*_script(config), *check_settings(config), *check_network(config), *check_node(config)]
    worst = max(finding.level for finding in findings)
    if as_json:
        click.echo(json.dumps(_as_json(settings, config, findings), indent=2))
    else:
        for line in _lines(settings, config, findings, all_settings):
            click.echo(line)
    context.exit(1 if worst is Level.ERROR else 0)


def _script(config: Config) -> Iterator[Finding]:
    wanted = config.command
    if wanted.kind is CommandKind.SCRIPT and os.path.isfile(wanted.target):
        yield _syntax(
            wanted.target, same_python=os.path.realpath(wanted.interpreter) == os.path.realpath(sys.executable)
        )
    else:
        yield ok("script", f"{wanted.kind.value} {clean(wanted.target)}")


def _syntax(path: str, same_python: bool) -> Finding:
    try:
        with open(path, "rb") as file:
            source = file.read(_SOURCE_LIMIT)
    except OSError as problem:
        return error("script", f"{path} cannot be read: {problem.strerror}")
    if not same_python:
        # Another version may know other syntax.
        return ok("script", path)
    try:
        ast.parse(source, path)
    except (SyntaxError, ValueError) as problem:
        line = f" in line {problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
        return error("script", f"{path} is not valid Python{line}: {getattr(problem, 'msg', problem)}")
    except RecursionError:
        pass
    return ok("script", path)


def _lines(settings: Settings, config: Config, findings: Sequence[Finding], everything: bool) -> Iterator[str]:
    if everything:
        yield print_config.render(settings, config).rstrip("\n")
    else:
        yield from _given(settings)
    yield ""
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        yield f"{_WORDS[finding.level]:<8} {finding.subject:<{width}}  {clean(finding.text)}"
    for told in (*settings.notes, *settings.infos):
        yield f"{'note':<8} {'options':<{width}}  {clean(told)}"
    yield ""
    yield _verdict(findings)


def _given(settings: Settings) -> Iterator[str]:
    shown = {
        name: setting
        for name, setting in settings.items().items()
        if setting.source is not Source.DEFAULT or setting.why
    }
    yield "settings that are not the default" if shown else "all settings are the default (--all-settings shows them)"
    width = max((len(name) for name in shown), default=0)
    for name, setting in shown.items():
        yield f"  {name:<{width}}  {shortened(settings.shown(name), 60) or '-'}  ({clean(setting.origin)})"


def _verdict(findings: Sequence[Finding]) -> str:
    count = {level: sum(finding.level is level for finding in findings) for level in Level}
    warnings = counted(count[Level.WARNING], "warning")
    if count[Level.ERROR]:
        return f"not fit: {counted(count[Level.ERROR], 'error')}, {warnings}"
    return f"fit, with {warnings}" if count[Level.WARNING] else "fit"


def _as_json(settings: Settings, config: Config, findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "fit": all(finding.level is not Level.ERROR for finding in findings),
        "settings": {
            name: {"value": settings.shown(name), "origin": setting.origin}
            for name, setting in settings.items().items()
        },
        "script": str(Path(config.command.target)),
        "notes": [*settings.notes, *settings.infos],
        "findings": [
            {"level": finding.level.name.lower(), "subject": finding.subject, "text": finding.text}
            for finding in findings
        ],
    }
