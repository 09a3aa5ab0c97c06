"""Memory and processor time of the launcher's side of a job: everything that is neither a rank nor started by one."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench_lib.runner import Running
from support import procfs

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Use:
    """What a set of processes uses: PSS in MB (10^6 bytes), and percent of one core."""

    processes: int
    pss_mb: float
    cpu_percent: float


def launcher_side(job: Running, ranks: Iterable[int]) -> set[int]:
    """Return the job's processes without the ranks and what they started. A helper may have a clean environment."""
    return (procfs.carrying(job.marker) | procfs.descendants([job.process.pid])) - procfs.descendants(ranks)


def use_of(job: Running, ranks: Iterable[int], window_s: float) -> Use:
    """Measure the launcher's side: memory once, processor time over ``window_s``."""
    pids = launcher_side(job, ranks)
    pss = sum(map(_pss_bytes, pids)) / 1e6
    before, began = sum(map(_cpu_s, pids)), time.monotonic()
    threading.Event().wait(window_s)
    spent = sum(map(_cpu_s, pids)) - before
    return Use(len(pids), pss, 100.0 * spent / (time.monotonic() - began))


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = int(fields[11]) + int(fields[12])
    except (OSError, IndexError):
        # It has ended: the kernel refuses, or gives an empty text.
        return 0.0
    return used * _TICK_S
