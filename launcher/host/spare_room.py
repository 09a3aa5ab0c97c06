"""Whether this machine has memory and CPUs to spare for standbys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE = 0.25
"""Share of a core for imports when the ranks need all cores."""

_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class Pace:
    """How fast standbys may import: a share of a core each, this many at once."""

    share: float
    at_once: int


def choose_pace(ranks: int, usable: int | None = None) -> Pace:
    """Full speed where there are more CPUs than ranks; else a quarter of a core, one after the other.

    Bound to no CPU: libraries choose the number of their threads by the affinity when they are loaded (sched(7)), once
    for all, and a rank would keep too few.

    Neither niceness nor SCHED_IDLE, because an unprivileged process cannot take them back (setpriority(2)).
    """
    spare = (len(os.sched_getaffinity(0)) if usable is None else usable) - ranks
    return Pace(1.0, min(ranks, spare)) if spare > 0 else Pace(BUSY_SHARE, 1)


def available_bytes() -> int:
    """Memory that can be had without swapping: of the machine, and of the container if that is less."""
    free = _meminfo_available()
    for limit_path, usage_path in _LIMITS:
        limit, usage = _number(limit_path), _number(usage_path)
        if limit is not None and usage is not None:
            free = min(free, max(0, limit - usage))
    return free


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
