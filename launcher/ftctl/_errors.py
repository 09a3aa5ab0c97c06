"""Errors of ``ftctl``: one line on stderr, and an exit code."""

from __future__ import annotations

import click


class NotFound(click.ClickException):
    """There is no such run, or nothing of it that could be shown. Caught in ``main``."""

    exit_code = 1


class Refused(click.ClickException):
    """The agent was reached and will not do it, or cannot be reached. Caught in ``main``."""

    exit_code = 1
