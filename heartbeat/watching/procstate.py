"""What the kernel tells about a process: proc(5). Parsers are pure; readers return ``None`` for what is gone.

The root is an argument, so that tests can make up any state, and readers cost about 60 µs for a process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PROC = "/proc"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PF_EXITING = 0x4  # include/linux/sched.h
_MAX_DEPTH = 64
_MAX_CHILDREN = 4096
_MAX_BYTES = 1 << 16


class Stat(NamedTuple):
    """The fields of ``/proc/<pid>/stat`` that matter here. CPU times in clock ticks."""

    state: str
    parent: int
    session: int
    exiting: bool
    faults: int
    cpu_ticks: int
    reaped_ticks: int
    """CPU time of children that were waited for."""
    threads: int
    start_ticks: int


class ProcState(NamedTuple):
    """One look at a process. Letters of ``state``: R, S, D, T (stopped), t (traced), Z, X, I."""

    pid: int
    state: str
    start_ticks: int = 0
    tracer_pid: int = 0
    threads: int = 1
    living_threads: int = 0
    """Beside the main thread, and not on their way out. Counted only when the main thread is a zombie."""
    switches: int = 0
    """Voluntary context switches of the main thread: stand still while it sleeps in one place, and while it spins."""
    faults: int = 0
    """Page faults of the main thread."""
    cpu_ticks: int = 0
    children_ticks: int | None = None
    """CPU time of all descendants, those that are gone included; ``None`` where it was not asked for."""
    waits_in: str = ""
    """Kernel function, read only in state D, where the kernel tells."""

    @property
    def traced(self) -> bool:
        """A debugger or tracer is attached."""
        return self.tracer_pid != 0 or self.state == "t"


class KernelWait(NamedTuple):
    """Where a process sleeps in the kernel, as far as this user may know."""

    state: str = ""
    wchan: str = ""
    stack: tuple[str, ...] = ()


def parse_stat(text: str) -> Stat | None:
    """Parse ``/proc/<pid>/stat``; the name in parentheses may hold anything, parentheses too."""
    fields = text.rpartition(")")[2].split()
    try:
        return Stat(
            state=fields[0],
            parent=int(fields[1]),
            session=int(fields[3]),
            exiting=bool(int(fields[6]) & _PF_EXITING),
            faults=int(fields[7]) + int(fields[9]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            reaped_ticks=int(fields[13]) + int(fields[14]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def parse_status(text: str) -> Mapping[str, str]:
    """Parse ``/proc/<pid>/status`` into its fields. ``Name`` is escaped by the kernel, so lines are lines."""
    found = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            found[name] = value.strip()
    return found


def read_stat(pid: int, root: str = PROC, thread: int | None = None) -> Stat | None:
    """``/proc/<pid>/stat``, or that of one thread."""
    task = f"/task/{thread}" if thread is not None else ""
    return parse_stat(_read(f"{root}/{pid}{task}/stat"))


def read(pid: int, root: str = PROC, *, children: bool = False) -> ProcState | None:
    """One look at a process; with ``children`` also at the CPU time of its descendants, which may take milliseconds."""
    stat = read_stat(pid, root)
    if stat is None:
        return None
    status = parse_status(_read(f"{root}/{pid}/status"))
    main = read_stat(pid, root, pid)
    return ProcState(
        pid=pid,
        state=stat.state,
        start_ticks=stat.start_ticks,
        tracer_pid=_number(status.get("TracerPid", "0")),
        threads=stat.threads,
        living_threads=_living_threads(pid, root) if stat.state == "Z" and stat.threads > 1 else 0,
        switches=_number(status.get("voluntary_ctxt_switches", "0")),
        faults=main.faults if main is not None else 0,
        cpu_ticks=stat.cpu_ticks,
        children_ticks=stat.reaped_ticks + _descendants_ticks(pid, root) if children else None,
        waits_in=read_wait(pid, root).wchan if stat.state == "D" else "",
    )


def look(pids: Mapping[int, int], root: str = PROC, *, children: bool = False) -> dict[int, ProcState]:
    """One look at each of ``pids`` (by local rank); those that are gone are left out."""
    found = {rank: read(pid, root, children=children) for rank, pid in pids.items()}
    return {rank: state for rank, state in found.items() if state is not None}


def read_wait(pid: int, root: str = PROC) -> KernelWait:
    """Where the main thread sleeps. ``stack`` needs CAP_SYS_ADMIN, ``wchan`` the right to trace; empty otherwise."""
    stat = read_stat(pid, root)
    wchan = _read(f"{root}/{pid}/wchan").strip()
    stack = tuple(line.partition("] ")[2] or line for line in _read(f"{root}/{pid}/stack").splitlines())
    return KernelWait(stat.state if stat is not None else "", "" if wchan == "0" else wchan, stack)


def belongs_to(pid: int, leader: int, root: str = PROC) -> bool:
    """Whether ``pid`` is the rank's first process, in its session, or below it. Reads one file per generation.

    An orphan that also left the session is not recognised: nothing ties it to the rank any more.
    """
    for _ in range(_MAX_DEPTH):
        if pid == leader:
            return True
        stat = read_stat(pid, root)
        if stat is None or pid <= 1:
            return False
        if stat.session == leader:
            return True
        pid = stat.parent
    return False


def _living_threads(pid: int, root: str) -> int:
    stats = [read_stat(pid, root, thread) for thread in _listed(f"{root}/{pid}/task") if thread != pid]
    return sum(1 for stat in stats if stat is not None and stat.state not in "ZX" and not stat.exiting)


def _descendants_ticks(pid: int, root: str) -> int:
    total = 0
    seen = {pid}
    waiting = list(_children(pid, root))
    while waiting and len(seen) < _MAX_CHILDREN:
        child = waiting.pop()
        if child in seen:
            continue
        seen.add(child)
        stat = read_stat(child, root)
        if stat is not None:
            total += stat.cpu_ticks + stat.reaped_ticks
            waiting += _children(child, root)
    return total


def _children(pid: int, root: str) -> Iterable[int]:
    """Needs CONFIG_PROC_CHILDREN, which every distribution sets; nothing otherwise."""
    for thread in _listed(f"{root}/{pid}/task"):
        for child in _read(f"{root}/{pid}/task/{thread}/children").split():
            yield _number(child)


def _listed(folder: str) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    return []


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text.split()[0], base)
    except (ValueError, IndexError):
        return 0


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(_MAX_BYTES) or b"").decode("utf-8", "replace")
    except OSError:
        return ""
