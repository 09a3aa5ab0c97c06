"""Look at processes through /proc, without the product's own code."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path


def pids() -> list[int]:
    """Return all process ids that are visible now."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def state(pid: int) -> str:
    """Return the state letter of proc(5), ``""`` when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def alive(pid: int) -> bool:
    """Return whether the process exists and is not just waiting to be reaped."""
    return state(pid) not in ("", "Z", "X")


def children(pid: int) -> set[int]:
    """Return direct children, zombies included."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    return found


def descendants(roots: Iterable[int]) -> set[int]:
    """Return everything below ``roots``, these included, as far as nobody has moved to another parent."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children(pid))
    return found


def carrying(marker: str) -> set[int]:
    """Return living processes whose start environment holds ``marker`` (``NAME=value``), this one left out."""
    wanted = marker.encode()
    found = set()
    for pid in pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and alive(pid):
                found.add(pid)
    return found


def describe(pid: int) -> str:
    """Return ``pid (state) command line`` for messages."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "gone"
    letter = state(pid)
    return f"{pid} ({'zombie, not reaped' if letter == 'Z' else letter or '-'}) {command[:200]}"


def kill_carrying(marker: str) -> set[int]:
    """SIGKILL every process that carries ``marker``; returns those that were there."""
    found = carrying(marker)
    kill(found)
    return found


def kill(targets: Iterable[int]) -> None:
    """SIGKILL all of them; those that are gone do not matter."""
    for pid in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
