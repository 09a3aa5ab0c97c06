"""Old runs are removed: the newest ones stay, up to a number and a size. A run whose agent lives is never touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ftlaunch.launcher.journal.rundir import RunDir, is_running, list_runs
from ftlaunch.launcher.output.threads import start_quiet_thread

KEEP_RUNS = 50
KEEP_BYTES = 10 << 30


def prune(root: Path, current: Path | None = None, keep_runs: int = KEEP_RUNS, keep_bytes: int = KEEP_BYTES) -> int:
    """Remove finished runs beyond the newest ``keep_runs`` or ``keep_bytes``; returns how many. Never raises OSError.

    Stats every file of the runs that stay: some milliseconds for a usual state directory.
    """
    kept, size, removed = 0, 0, 0
    for run in reversed(list(list_runs(root))):
        if run == current or is_running(run):
            continue
        run_size = disk_usage(run)
        # The newest finished run stays whatever its size: it is the one that is looked at.
        if kept < keep_runs and (size + run_size <= keep_bytes or kept == 0):
            kept += 1
            size += run_size
        else:
            shutil.rmtree(run, ignore_errors=True)
            removed += 1
    return removed


def prune_in_background(run: RunDir) -> None:
    """Start :func:`prune` in a daemon thread. The end of the agent may cut it short; the next run goes on with it."""
    root = run.root
    if root is not None:
        start_quiet_thread(lambda: _prune_quietly(root, run.path), "ftlaunch-retention")


def disk_usage(folder: Path) -> int:
    """Bytes that the files below a directory take on disk. What cannot be read counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _prune_quietly(root: Path, current: Path) -> None:
    prune(root, current)
