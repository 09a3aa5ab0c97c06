"""Who descends from whom, read from /proc in one pass. See proc(5).

The agent is a child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): whatever a rank starts stays a descendant of the
agent, through setsid, double forks and the death of every process between. So descent is complete while the agent
lives; the run marker in the environment is for the guardian, when it does not.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_PF_EXITING = 0x4  # linux/sched.h; field "flags" of proc(5)


@dataclass(frozen=True)
class ProcessEntry:
    """One line of the process table. ``start_ticks`` tells a process from a later one with the same pid."""

    pid: int
    ppid: int
    session: int
    state: str
    start_ticks: int
    name: str
    exiting: bool = False
    """The kernel is taking it apart already (PF_EXITING); it becomes a zombie when that is done."""


def parse_stat(text: str) -> ProcessEntry:
    """Parse ``/proc/<pid>/stat``; the name may hold spaces and parentheses. Raises ValueError when it is not one."""
    opening, closing = text.index("("), text.rindex(")")
    rest = text[closing + 2 :].split()
    return ProcessEntry(
        pid=int(text[:opening]),
        state=rest[0],
        ppid=int(rest[1]),
        session=int(rest[3]),
        start_ticks=int(rest[19]),
        exiting=bool(int(rest[6]) & _PF_EXITING),
        name=text[opening + 1 : closing],
    )


def read_entry(pid: int) -> ProcessEntry | None:
    """The entry of one process, ``None`` when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return parse_stat(stat.read())
    except (OSError, ValueError):
        return None


def read_table() -> list[ProcessEntry]:
    """All processes we may see. About 15 µs for each; those that vanish meanwhile are left out."""
    return list(_entries())


def _entries() -> Iterator[ProcessEntry]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = read_entry(int(name))
            if entry is not None:
                yield entry


def descendants(table: Collection[ProcessEntry], root: int, without: Collection[int] = ()) -> list[ProcessEntry]:
    """Everything below ``root``, parents first. A pid in ``without`` is left out together with all below it."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in table:
        children.setdefault(entry.ppid, []).append(entry)
    found: list[ProcessEntry] = []
    waiting = list(children.get(root, ()))
    while waiting:
        entry = waiting.pop(0)
        if entry.pid in without:
            continue
        found.append(entry)
        waiting.extend(children.get(entry.pid, ()))
    return found


def has_handler(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal (SigCgt in ``/proc/<pid>/status``)."""
    mask = _status_field(pid, "SigCgt")
    return mask is not None and bool(int(mask, 16) >> (signum - 1) & 1)


def is_stopped(pid: int, *, or_traced: bool = False) -> bool:
    """Whether the process was stopped, or, if that counts too, a tracer holds it."""
    entry = read_entry(pid)
    return entry is not None and entry.state in ("Tt" if or_traced else "T")


def is_traced(pid: int) -> bool:
    """Whether a debugger or tracer is attached."""
    return _status_field(pid, "TracerPid") not in (None, "0")


def _status_field(pid: int, field: str) -> str | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            for line in status:
                name, _, value = line.partition(":")
                if name == field:
                    return value.strip()
    except OSError:
        return None
    return None
