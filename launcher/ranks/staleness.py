"""Whether what a standby has imported is still what a cold start would import."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

Fingerprint = tuple[tuple[int, int, int], ...]


def watched_paths(interpreter: str, script: str) -> tuple[str, ...]:
    """The script, the interpreter, and the folders that installing a package changes."""
    binary = Path(interpreter)
    prefixes = {binary.parent.parent, Path(os.path.realpath(binary)).parent.parent}
    folders = [
        folder
        for prefix in sorted(prefixes)
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")
        # Not Path.glob, which raises for a folder that we may not read.
        for folder in sorted(glob.glob(f"{glob.escape(str(prefix))}/{pattern}"))
    ]
    return (script, str(binary), *folders)


def fingerprint(paths: Sequence[str]) -> Fingerprint:
    """Inode, size and change of each path; one stat(2) each. pip adds and removes entries in these folders."""
    return tuple(_of(path) for path in paths)


def _of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)
