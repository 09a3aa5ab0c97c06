"""``--print-config``: every effective value and where it comes from, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from ftlaunch.launcher import __version__
from ftlaunch.launcher.cli import options
from ftlaunch.launcher.cli.settings import Settings
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.secrecy import redact

_NOT_SHOWN = frozenset({"print-config", "version", "help"})
_NAME_WIDTH = 32
_VALUE_WIDTH = 24


def render(settings: Settings, config: Config) -> str:
    """The whole text, ending with a newline: one line per option, by group, then the command and the notes."""
    lines = [f"ftlaunch {__version__}"]
    for group in options.GROUPS:
        rows = [
            _line(option.name, settings.shown(option.name), settings.items()[option.name].origin)
            for option in options.OPTIONS
            if option.group == group and option.name not in _NOT_SHOWN
        ]
        if rows:
            lines += ["", f"# {group}", *rows]
    lines += ["", "# Command of each rank", *_command(config)]
    if settings.notes or settings.infos:
        lines += ["", "# Notes", *(_printable(note) for note in (*settings.notes, *settings.infos))]
    return "\n".join(lines) + "\n"


def _command(config: Config) -> Iterator[str]:
    command = config.command
    if not command.target:
        yield "(no script given)"
        return
    yield _line("kind", command.kind.value, "")
    yield _line("interpreter", " ".join((command.interpreter, *command.interpreter_args)), "")
    yield _line("script", command.target, "")
    for index, argument in enumerate(redact(command.args)):
        yield _line(f"argument {index + 1}", argument or "''", "")


def _line(name: str, value: str, origin: str) -> str:
    shown = _printable(value) or "-"
    return f"{name:<{_NAME_WIDTH}}{shown:<{_VALUE_WIDTH}}  {_printable(origin)}".rstrip()


def _printable(text: str) -> str:
    """One line that any terminal can show: control characters and bytes that are not text are escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "replace").decode()
        for character in text.encode("utf-8", "backslashreplace").decode()
    )
