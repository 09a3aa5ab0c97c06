"""What a test must not leave behind: processes, threads, descriptors, sockets and runtime directories."""

from __future__ import annotations

import gc
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support import procfs

# Started once per interpreter by multiprocessing and meant to stay until its end.
_RESIDENT = "multiprocessing.resource_tracker"


@dataclass(frozen=True)
class Snapshot:
    """Everything that is there at one moment."""

    processes: frozenset[int]
    threads: frozenset[str]
    descriptors: frozenset[str]
    files: frozenset[str]

    def beyond(self, before: Snapshot) -> list[str]:
        """Return what is here but was not there before."""
        lines = [f"process: {procfs.describe(pid)}" for pid in sorted(self.processes - before.processes)]
        for kind in ("threads", "descriptors", "files"):
            lines += [f"{kind}: {line}" for line in sorted(getattr(self, kind) - getattr(before, kind))]
        return lines


def take(marker: str, folders: tuple[Path, ...]) -> Snapshot:
    """Look at this process, at all that carry ``marker`` in their environment, and into ``folders``."""
    return Snapshot(
        processes=frozenset(_processes(marker)),
        threads=frozenset(f"{thread.name} {thread.ident}" for thread in threading.enumerate()),
        descriptors=frozenset(_descriptors()),
        files=frozenset(str(path) for folder in folders for path in _runtime_files(folder)),
    )


def remaining(before: Snapshot, marker: str, folders: tuple[Path, ...]) -> list[str]:
    """Return what was added since ``before``, after what is only garbage has been collected."""
    found = take(marker, folders).beyond(before)
    if found:
        gc.collect()
        found = take(marker, folders).beyond(before)
    return found


def _processes(marker: str) -> Iterator[int]:
    for pid in procfs.children(os.getpid()) | procfs.carrying(marker):
        if procfs.state(pid) and _RESIDENT not in procfs.describe(pid):
            yield pid


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.startswith(f"/proc/{os.getpid()}/fd"):
            yield f"{name} -> {target}"


def _runtime_files(folder: Path) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        for name in names + files:
            path = Path(root, name)
            try:
                is_socket = stat.S_ISSOCK(path.lstat().st_mode)
            except OSError:
                continue
            if is_socket or name.startswith("ftlaunch"):
                yield path
