"""What a killed agent left when its guardian was killed with it: found by the run's marker at the next start.

The guardian does this at once (:mod:`.guardian`); but ``pkill -9 ftlaunch`` takes both, and a child of a rank in a
session of its own lives on, with its ports and its GPU memory. So the marker stands in ``run.json`` until the run has
ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftlaunch.launcher.host import proctree
from ftlaunch.launcher.journal.rundir import EARLIER, RUN_FILE, RunDir, died_here, list_runs, read_run_file, write_json
from ftlaunch.launcher.processes import guardian

MARK = "mark"
"""The fact of ``run.json`` that holds the marker."""
_SHOWN = 5


def end_abandoned(run: RunDir, tell: Callable[[str], None]) -> None:
    """Kill what runs of this directory left whose agent died on this machine without ending them; one line for each.

    Reads the ``run.json`` of every run, about 30 µs each; the process table only when such a run was not looked at yet.
    """
    for path, facts in _unfinished(run):
        marker = facts[MARK]
        left = [entry for entry in proctree.read_table() if guardian.carries(entry.pid, marker)]
        if left:
            guardian.sweep(marker)
            names = ", ".join(f"pid {entry.pid} ({entry.name})" for entry in left[:_SHOWN])
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            tell(f"killed what run {path.name} left when its ftlaunch was killed: {names}{more}")
        try:
            write_json(path / RUN_FILE, {name: fact for name, fact in facts.items() if name != MARK})
        except OSError:
            # Looked at again next time, then.
            continue


def _unfinished(run: RunDir) -> Iterator[tuple[Path, dict[str, Any]]]:
    root = run.root if run.root is not None else run.path / EARLIER
    for path in list_runs(root):
        facts = read_run_file(path)
        if path == run.path or facts is None or not isinstance(facts.get(MARK), str):
            continue
        if died_here(facts) and facts.get("pid") != os.getpid():
            yield path, facts
