"""The launcher's own lines: ``[ftlaunch] …`` on stderr, whole, never mixed with rank output."""

from __future__ import annotations

import logging

from ftlaunch.launcher.output.console import Console

_PREFIX = "[ftlaunch] "
_LOGGER = "ftlaunch"


class Say:
    """Speaks to the user. ``level`` as in :mod:`logging`; :meth:`notice` is always shown. Any thread may call."""

    def __init__(self, console: Console, level: int = logging.WARNING) -> None:
        self._console = console
        self._level = level

    def notice(self, text: str) -> None:
        """What every user wants to know: a failure, a restart, where the logs are."""
        self._line(text)

    def error(self, text: str) -> None:
        """Something is wrong, and the job suffers from it."""
        self._at(logging.ERROR, text)

    def warning(self, text: str) -> None:
        """Something is less than was asked for."""
        self._at(logging.WARNING, text)

    def info(self, text: str) -> None:
        """How things go."""
        self._at(logging.INFO, text)

    def debug(self, text: str) -> None:
        """Why the launcher decided what."""
        self._at(logging.DEBUG, text)

    def shows(self, level: int) -> bool:
        """Whether a line of this level, of :mod:`logging`, would be seen: not worth making otherwise."""
        return level >= self._level

    def _at(self, level: int, text: str) -> None:
        if self.shows(level):
            self._line(text)

    def _line(self, text: str) -> None:
        self._console.say("\n".join(_PREFIX + line for line in text.splitlines() or [""]))


class _SayHandler(logging.Handler):
    """Sends log records of ftlaunch's modules the same way."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001
            # As logging does itself: a bad format string must not hurt the caller.
            self.handleError(record)
            return
        self._console.say("\n".join(_PREFIX + line for line in text.splitlines() or [""]))


def speak(console: Console, level_name: str) -> Say:
    """Make the speaker, and route the ``ftlaunch`` loggers through the same console. Levels as in :mod:`logging`."""
    level: int = getattr(logging, level_name)
    logger = logging.getLogger(_LOGGER)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _SayHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(_SayHandler(console))
    logger.setLevel(level)
    logger.propagate = False
    return Say(console, level)
