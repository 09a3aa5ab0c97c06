"""``python -m ftlaunch.launcher.checkpoints DIR``: one scan in a process of its own, the view as one line of JSON.

The caller kills it when its deadline passes. A child stuck in the kernel on a dead file server then stays behind alone;
a thread stuck there would keep the agent from ever ending.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Sequence

from ftlaunch.launcher import clock
from ftlaunch.launcher.checkpoints.custom import Pattern, Validator
from ftlaunch.launcher.checkpoints.formats import AUTO, CHOICES
from ftlaunch.launcher.checkpoints.model import MAX_OFFERED
from ftlaunch.launcher.checkpoints.scan import Request, scan

MAX_MEMORY_BYTES = 4 << 30
"""A damaged pickle can ask for any amount. What it gets is an error for this one checkpoint."""


def main(argv: Sequence[str] | None = None) -> int:
    """Scan and print. Exit code 2 for wrong options, else 0: what is wrong in the directory is in the view."""
    options = _parser().parse_args(argv)
    try:
        request = Request(
            options.format,
            None if options.pattern is None else Pattern.parse(options.pattern),
            None if options.validator is None else Validator.parse(options.validator, options.validator_timeout),
            options.wanted,
        )
    except ValueError as error:
        print(f"ftlaunch: {error}", file=sys.stderr)
        return 2
    if request.validator is None:  # it would inherit the limit
        _limit_memory()
    end = clock.monotonic() + options.timeout
    view = scan(options.directory, request, lambda: clock.monotonic() >= end)
    return _print(json.dumps(view.as_offer()))


def _print(line: str) -> int:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Nobody waits for it any more. The interpreter must not try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ftlaunch.launcher.checkpoints", allow_abbrev=False)
    parser.add_argument("directory")
    parser.add_argument("--format", choices=tuple(CHOICES), default=AUTO)
    parser.add_argument("--pattern")
    parser.add_argument("--validator")
    parser.add_argument("--validator-timeout", type=float, default=30.0)
    parser.add_argument("--wanted", type=int, default=MAX_OFFERED)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds; what was found until then is printed")
    return parser


def _limit_memory() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or soft > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))


if __name__ == "__main__":
    sys.exit(main())
