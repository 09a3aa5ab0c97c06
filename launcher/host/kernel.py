"""The few kernel calls that Python has no name for."""

from __future__ import annotations

import os

from ftlaunch.launcher.errors import UsageError

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def become_subreaper() -> bool:
    """Adopt the orphans of our descendants (prctl(2)). False where a sandbox forbids it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def require_pidfd() -> None:
    """Raise :class:`UsageError` on a kernel or sandbox without pidfd_open(2) (Linux before 5.3)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        raise UsageError(
            f"ftlaunch needs Linux 5.3 or newer with pidfd_open(2), which this system refuses ({error})"
        ) from None
