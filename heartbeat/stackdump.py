"""Python stacks of a stuck worker, on demand: faulthandler on a reserved real-time signal.

The dump is made in C in the signal handler, so it works while the main thread spins or sits in a system call, and
needs neither the interpreter lock nor a cooperating script. It goes to the descriptor that the agent passed.
"""

from __future__ import annotations

import faulthandler
import os
from _signal import SIGRTMAX  # type: ignore[import-not-found] # signal itself would import enum

DUMP_SIGNAL: int = SIGRTMAX - 5
"""Far from both ends of the range, where libraries look first."""

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def register(fd: int) -> bool:
    """Have DUMP_SIGNAL write the stacks of all threads to ``fd``; False when that cannot be arranged."""
    try:
        faulthandler.register(DUMP_SIGNAL, file=fd, all_threads=True, chain=False)
    except (OSError, RuntimeError, ValueError, AttributeError):
        return False
    return True


def is_complete(text: str) -> bool:
    """Whether a dump has come to its end. It is written frame by frame, the main thread last, our entry its last frame.

    A worker deeper than faulthandler's 100 frames never shows it: take what is there after a while.
    """
    return f'"{_OURS}bootstrap.py", line ' in text and text.endswith("\n")


def without_our_frames(text: str) -> str:
    """The dump without the frames below the script's own."""
    return "".join(line for line in text.splitlines(keepends=True) if f'File "{_OURS}' not in line)
