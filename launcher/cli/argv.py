"""Where the launcher's options end and the script begins, decided before anything else looks at the arguments.

The first argument that is neither an option nor an option's value is the script. Everything after it belongs to the
script and is never looked at: ``--``, ``-h``, empty strings and what looks like our own options included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch.launcher.cli import options
from ftlaunch.launcher.cli.options import Option
from ftlaunch.launcher.cli.values import show
from ftlaunch.launcher.errors import UsageError

_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+", re.ASCII)
_HINT = "options of the training script go after the script"


@dataclass(frozen=True)
class Given:
    """One option as found. ``value`` is ``None`` for a flag."""

    option: Option
    value: str | None

    def token(self) -> str:
        """The option in its one canonical form."""
        return f"--{self.option.name}" if self.value is None else f"--{self.option.name}={self.value}"


@dataclass(frozen=True)
class Scanned:
    """The two halves of a command line. ``script`` is ``None`` when there is none."""

    given: tuple[Given, ...]
    script: str | None
    script_args: tuple[str, ...]


def scan(arguments: Sequence[str]) -> Scanned:
    """Split the arguments (without the program's name).

    Raises :class:`UsageError` for an unknown or ambiguous option, a missing value, or a value given to a flag.
    """
    given: list[Given] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            position += 1
            break
        if not argument.startswith("-") or argument == "-":
            break
        following = arguments[position + 1] if position + 1 < len(arguments) else None
        found, used = _long(argument, following) if argument.startswith("--") else _letters(argument, following)
        given.extend(found)
        position += used
    rest = arguments[position:]
    return Scanned(tuple(given), rest[0] if rest else None, tuple(rest[1:]))


def _long(argument: str, following: str | None) -> tuple[list[Given], int]:
    spelled, equals, value = argument.partition("=")
    option = _find(spelled)
    if option.flag:
        if equals:
            raise UsageError(f"{spelled} takes no value, but {show(value)} was given")
        return [Given(option, None)], 1
    if equals:
        return [Given(option, value)], 1
    return [Given(option, _required(spelled, option, following))], 2


def _letters(argument: str, following: str | None) -> tuple[list[Given], int]:
    """``-m``, ``-r 3``, ``-r3``, ``-r=3`` and flags run together with one that takes a value: ``-mr3``."""
    found: list[Given] = []
    for index, letter in enumerate(argument[1:], start=1):
        option = options.by_letter().get(letter)
        if option is None:
            raise UsageError(f"unknown option {show(argument)}; {_HINT}")
        rest = argument[index + 1 :]
        if option.flag:
            found.append(Given(option, None))
        elif rest:
            return [*found, Given(option, rest.removeprefix("="))], 1
        else:
            return [*found, Given(option, _required(f"-{letter}", option, following))], 2
    return found, 1


def _required(spelled: str, option: Option, following: str | None) -> str:
    """The next argument as the value. One that looks like an option is a forgotten value, as in argparse."""
    if following is None or (
        following.startswith("-") and following != "-" and not _NEGATIVE_NUMBER.fullmatch(following)
    ):
        raise UsageError(
            f"{spelled} needs a value: {spelled} {option.metavar} (or {spelled}=VALUE if it starts with -)"
        )
    return following


def _find(spelled: str) -> Option:
    name = spelled[2:].replace("_", "-")
    known = options.by_name()
    if name in known:
        return known[name]
    matches = [option for option in options.OPTIONS if name and option.torchrun and option.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        alternatives = ", ".join(f"--{option.name}" for option in matches)
        raise UsageError(f"ambiguous option {show(spelled)}: it could be {alternatives}")
    raise UsageError(f"unknown option {show(spelled)}{_suggestion(name)}; {_HINT}")


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, options.by_name(), n=1, cutoff=0.6)
    if not close:
        # An own option that was abbreviated is too short for a close match.
        close = [known for known in options.by_name() if len(name) > 2 and known.startswith(name)][:1]
    return f"; did you mean --{close[0]}?" if close else ""
