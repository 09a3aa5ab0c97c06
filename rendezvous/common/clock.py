"""The clocks of this package. Durations that must hold while the machine sleeps are counted on the second."""

from __future__ import annotations

import time


def monotonic() -> float:
    """Seconds of CLOCK_MONOTONIC: stands still while the machine is suspended."""
    return time.monotonic()


def boottime() -> float:
    """Seconds of CLOCK_BOOTTIME: goes on while the machine is suspended (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
