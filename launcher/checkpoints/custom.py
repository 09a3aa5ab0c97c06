"""The user's own word on what is a checkpoint: a pattern for names, a command that judges.

The command gets the path as its last argument, or in place of ``{path}``; exit code 0 means complete. It runs in a
session of its own, without a terminal, and is killed with all its children when its time is up.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from typing import IO

from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, size_of
from ftlaunch.launcher.checkpoints.model import show
from ftlaunch.launcher.checkpoints.names import MAX_DIGITS

KILL_WAIT_S = 2.0
TAIL_BYTES = 2048
PLACEHOLDER = "{path}"


class ValidatorError(Exception):
    """The validator command cannot be run at all. The scan ends with it as the view's error: nothing can be trusted."""


@dataclass(frozen=True)
class Pattern:
    """A compiled ``--checkpoint-pattern``. Matches whole names; the ``step`` group, if any, holds the number."""

    regex: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises :class:`ValueError` with one line for the user."""
        try:
            return cls(re.compile(text))
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"--checkpoint-pattern {text!r} is not a regular expression: {error}") from None

    def step_of(self, name: str) -> tuple[bool, int | None]:
        """Whether the name matches, and the step in it. A step that is no number counts as no match."""
        match = self.regex.fullmatch(name)
        if match is None:
            return False, None
        if "step" not in self.regex.groupindex:
            return True, None
        digits = match.group("step")
        if digits is None or not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
            return False, None
        return True, int(digits)


@dataclass(frozen=True)
class Validator:
    """A ``--checkpoint-validator`` command and how long it may take for one checkpoint."""

    argv: tuple[str, ...]
    timeout_s: float = 30.0

    @classmethod
    def parse(cls, command: str, timeout_s: float = 30.0) -> Validator:
        """Split as a shell would, without running one. Raises :class:`ValueError` with one line for the user."""
        try:
            argv = tuple(shlex.split(command))
        except ValueError as error:
            raise ValueError(f"--checkpoint-validator {command!r}: {error}") from None
        if not argv:
            raise ValueError("--checkpoint-validator is empty: give a command")
        return cls(argv, timeout_s)

    def check(self, path: str) -> None:
        """Run it; takes at most ``timeout_s`` and two seconds.

        Raises :class:`Incomplete` when it says no or takes too long, :class:`ValidatorError` if it cannot be run.
        """
        argv = [part.replace(PLACEHOLDER, path) for part in self.argv]
        if argv == list(self.argv):
            argv.append(path)
        with _scratch() as errors:
            self._run(argv, errors)

    def _run(self, argv: list[str], errors: IO[bytes]) -> None:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ValidatorError(f"the checkpoint validator {show(argv[0])} cannot be run: {error}") from None
        try:
            code = child.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            raise Incomplete(f"the validator took longer than {self.timeout_s:g} s") from None
        finally:
            _end(child)
        if code in (126, 127):
            raise ValidatorError(f"the checkpoint validator {show(argv[0])} cannot be run: exit code {code}")
        if code != 0:
            raise Incomplete(f"the validator says no (exit code {code}){_last_line(errors)}")


def verify_any(entry: Entry) -> Facts:
    """All that can be said of an unknown format: nothing in it is empty. Raises :class:`Incomplete`."""
    if not entry.is_dir:
        size_of(entry.path)
        return Facts()
    if not entry.children:
        raise Incomplete("an empty directory")
    for name in sorted(entry.children):
        if os.path.isfile(entry.child(name)):
            size_of(entry.child(name))
    return Facts()


def _scratch() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "w+b")


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what it started too, also when it ended by itself
    # In an uninterruptible read of a dead file server it stays: subprocess reaps it later, we don't wait.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILL_WAIT_S)


def _last_line(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - TAIL_BYTES))
    lines = errors.read().decode("utf-8", "backslashreplace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""
