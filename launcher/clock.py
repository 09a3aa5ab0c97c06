"""The clocks of the agent, which nothing else in it reads. What decides takes ``now`` as an argument."""

from __future__ import annotations

import time
from datetime import datetime, timezone


def monotonic() -> float:
    """Seconds of CLOCK_MONOTONIC: comparable between processes of one machine, stands still while it is suspended."""
    return time.monotonic()


def boottime() -> float:
    """Seconds of CLOCK_BOOTTIME: as monotonic, but goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> str:
    """UTC wall time as ISO 8601 with microseconds. For records only, never compared with anything."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")
