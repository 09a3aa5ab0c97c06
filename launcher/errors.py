"""The launcher's error family. Each error knows the exit code it leads to; ``main`` catches the base class."""

from __future__ import annotations

from ftlaunch.launcher.exit_codes import ExitCode


class FtlaunchError(Exception):
    """Base of what the launcher reports to its user in one line. ``main`` ends with its code, ``ftctl`` shows it."""

    exit_code: int = 1


class UsageError(FtlaunchError):
    """An option, an environment variable or a file is wrong. The text says what would be right."""

    exit_code = ExitCode.USAGE


class SpawnError(FtlaunchError):
    """A worker could not be started at all (not executable, no such interpreter, out of processes)."""

    exit_code = ExitCode.USAGE


class NodeUnfit(FtlaunchError):
    """No rank must run on this node. The text is the reason, in one line."""

    exit_code = ExitCode.UNHEALTHY


class InvalidTransition(FtlaunchError):
    """The decision table has no entry for this state and event: a defect of ftlaunch. Carries the recent story."""

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.story = story
