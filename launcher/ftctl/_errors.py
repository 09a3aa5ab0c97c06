"""Errors of ``ftctl``: one line on stderr, and an exit code."""

from __future__ import annotations

import click


class NotFound(click.ClickException):
    """There is no such run, or nothing of it that could be shown. Caught in ``main``."""

    exit_code = 1
