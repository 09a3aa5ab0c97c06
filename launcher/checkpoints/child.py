"""The agent's side of a scan in a child process: its command line, and what its output means.

The agent starts and, at its deadline, kills the child with its own means and never waits for one that won't die.
"""

from __future__ import annotations

import json
import os

from ftlaunch.launcher.checkpoints.model import View
from ftlaunch.launcher.config import CheckpointConfig

GRACE_S = 5.0
"""How much longer than ``scan_timeout_s`` the child may live: it ends by itself unless a system call hangs."""
MAX_OUTPUT_BYTES = 1 << 20
_SAID_CHARACTERS = 300


def command(python: str, config: CheckpointConfig, wanted: int | None = None) -> list[str]:
    """The command line that looks at ``config.directory`` once; its standard output goes to :func:`read_view`.

    Raises :class:`ValueError` when no directory is configured.
    """
    if config.directory is None:
        raise ValueError("no checkpoint directory is configured")
    argv = [
        python,
        "-m",
        __name__.rpartition(".")[0],
        f"--format={config.format}",
        f"--timeout={config.scan_timeout_s}",
    ]
    if config.pattern is not None:
        argv.append(f"--pattern={config.pattern}")
    if config.validator is not None:
        argv += [f"--validator={config.validator}", f"--validator-timeout={config.validator_timeout_s}"]
    if wanted is not None:
        argv.append(f"--wanted={wanted}")
    return [*argv, "--", config.directory]


def read_view(directory: str, output: bytes, problem: str | None = None) -> View:
    """The view that a child printed; ``output`` may hold its stderr as well.

    ``problem``: why there is none (killed at its deadline, exit code). The last line of the output tells more.
    """
    root = os.path.abspath(directory)
    lines = output.splitlines()
    if problem is not None:
        said = lines[-1].decode("utf-8", "replace") if lines else ""
        return View(root, error=f"{problem}: {said[:_SAID_CHARACTERS]}" if said else problem)
    view = next((line for line in reversed(lines) if line.startswith(b"{")), b"")
    try:
        return View.from_offer(json.loads(view))
    except (ValueError, RecursionError) as error:
        return View(root, error=f"the scan of the checkpoint directory gave no view: {error}")


def check(config: CheckpointConfig) -> None:
    """Refuse settings that the child would refuse. Raises :class:`ValueError` with one line for the user."""
    from ftlaunch.launcher.checkpoints.custom import Pattern, Validator
    from ftlaunch.launcher.checkpoints.scan import Request

    pattern = None if config.pattern is None else Pattern.parse(config.pattern)
    validator = None if config.validator is None else Validator.parse(config.validator, config.validator_timeout_s)
    Request(config.format, pattern, validator)
