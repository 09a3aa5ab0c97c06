"""Exit codes of ``ftlaunch``. They are an API: podFailurePolicy and Slurm requeue scripts key on them."""

from __future__ import annotations

import enum
import signal


class ExitCode(enum.IntEnum):
    """Codes the agent chooses itself. Any other code is the first failed worker's own.

    A worker that happens to exit with one of these numbers is passed on as it is; the failure report says whose code
    it was.
    """

    SUCCESS = 0
    USAGE = 2
    """Bad option, environment or file; nothing was spawned."""
    RENDEZVOUS = 69
    """The rendezvous could not be reached or completed."""
    UNHEALTHY = 75
    """This node is bad (unkillable worker, GPU not reclaimed, health check): run the job elsewhere."""
    NO_PROGRESS = 76
    """Restarting does not help (no progress, or the same failure again): do not requeue."""
    INTERRUPTED = 130
    """Stopped by SIGINT after the workers ended."""
    TERMINATED = 143
    """Stopped by SIGTERM after the workers ended."""


def from_wait_status(exit_code: int) -> int:
    """Translate a child's code, negative for a signal as in :mod:`subprocess`, to what a shell would show."""
    return 128 - exit_code if exit_code < 0 else exit_code


def signal_name(number: int) -> str:
    """Name a signal, real-time ones included: ``SIGKILL``, ``SIGRTMIN+5``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        # signal.Signals knows only the two ends of the real-time range.
        return (
            f"SIGRTMIN+{number - signal.SIGRTMIN}" if signal.SIGRTMIN < number < signal.SIGRTMAX else f"signal {number}"
        )
