"""What a check of ``ftctl check`` answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.IntEnum):
    """How bad it is."""

    OK = 0
    NOTE = 1
    """Good to know: something is not there, or less than it could be."""
    WARNING = 2
    """The job will run, and something that people count on will not work."""
    ERROR = 3
    """The job cannot run like this."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, and what was found."""

    level: Level
    subject: str
    text: str


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str) -> Finding:
    """Good to know."""
    return Finding(Level.NOTE, subject, text)


def warning(subject: str, text: str) -> Finding:
    """Something will not work."""
    return Finding(Level.WARNING, subject, text)


def error(subject: str, text: str) -> Finding:
    """Nothing will work."""
    return Finding(Level.ERROR, subject, text)
