"""Finding runs and summing them up, from what lies in their directories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.launcher.exit_codes import ExitCode, signal_name
from ftlaunch.launcher.ftctl._errors import NotFound
from ftlaunch.launcher.journal.records import EVENTS_FILE, read_events
from ftlaunch.launcher.journal.rundir import RUN_FILE, candidate_roots, is_running, list_runs, read_run_file
from ftlaunch.launcher.processes.signals import DEFAULT_SIGNALS

_STOPPED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_BY_SIGNAL = "received "
"""How the reason of a job begins that ended for a signal to its agent."""


@dataclass(frozen=True)
class RunSummary:
    """One line of ``ftctl runs``.

    ``state``: running, succeeded, failed, stopped, preempted (a signal that only ``--preempt-signal`` or
    ``--signals-to-handle`` makes one to end at), or lost (the agent vanished).
    """

    id: str
    path: str
    state: str
    command: tuple[str, ...]
    started: str
    generations: int
    last_cause: str
    exit_code: int | None


def all_runs(environment: Mapping[str, str] | None = None) -> list[Path]:
    """All runs of this user, oldest first, wherever runs may be."""
    roots = candidate_roots(os.environ if environment is None else environment)
    return sorted((run for root in roots for run in list_runs(root)), key=lambda run: run.name)


def find_run(wanted: str | None) -> Path:
    """The run of this name, or name's beginning, or directory; the newest one for ``None`` and ``latest``.

    Raises :class:`NotFound`, also when several runs begin like that.
    """
    runs = all_runs()
    if wanted is None or wanted == "latest":
        if not runs:
            raise NotFound("there are no runs yet")
        return runs[-1]
    if not wanted:
        # As a path it would be the present directory.
        raise NotFound("no run begins with ''; see ftctl runs")
    folder = Path(wanted)
    if any((folder / name).is_file() for name in (RUN_FILE, EVENTS_FILE)):
        return folder
    inside = runs_inside(folder)
    if inside:
        raise NotFound(
            f"{wanted} holds {len(inside)} runs: name one of them, {inside[0]} say; ftctl report takes them all"
        )
    matches = [run for run in runs if run.name == wanted] or [run for run in runs if run.name.startswith(wanted)]
    if not matches:
        raise NotFound(f"no run begins with {wanted!r}; see ftctl runs")
    if len(matches) > 1:
        some = ", ".join(run.name for run in matches[-3:])
        raise NotFound(f"{len(matches)} runs begin with {wanted!r} ({some}, …); give more of the name")
    return matches[0]


def runs_inside(folder: Path) -> list[Path]:
    """The runs that lie side by side in a directory, as a drill keeps those of its nodes; by name."""
    return sorted(path.parent for path in folder.glob(f"*/{EVENTS_FILE}"))


def summarise(run: Path) -> RunSummary:
    """Sum up a run from ``run.json`` and its events; what is missing or broken stays empty."""
    facts: Mapping[str, Any] = read_run_file(run) or {}
    generations, cause, code, started, reason = _read_story(run)
    known = facts.get("exit_code", code)
    exit_code = known if isinstance(known, int) else None
    command = facts.get("command")
    return RunSummary(
        id=str(facts.get("id") or run.name),
        path=str(run),
        state=_state(run, exit_code, str(facts.get("reason") or reason)),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        started=str(facts.get("started") or started),
        generations=generations,
        last_cause=cause,
        exit_code=exit_code,
    )


def _read_story(run: Path) -> tuple[int, str, object, str, str]:
    highest, cause, started, reason = -1, "", "", ""
    code: object = None
    try:
        for event in read_events(run / EVENTS_FILE):
            started = started or str(event.get("time") or "")
            generation = event.get("generation")
            if isinstance(generation, int):
                highest = max(highest, generation)
            if event["event"] in ("failure_detected", "cause_corrected"):
                cause = str(event.get("reason") or "")
            elif event["event"] == "job_finished":
                code, reason = event.get("exit_code"), str(event.get("reason") or "")
    except OSError:
        pass
    return highest + 1, cause, code, started, reason


def _state(run: Path, exit_code: int | None, reason: str) -> str:
    if exit_code is None:
        return "running" if is_running(run) else "lost"
    if exit_code == 0:
        return "succeeded"
    if exit_code in _STOPPED:
        return "stopped"
    # A rank that died of the same signal has the same code, but not the reason.
    signalled = exit_code > 128 and reason.startswith(_BY_SIGNAL + signal_name(exit_code - 128))
    if not signalled:
        return "failed"
    return "stopped" if exit_code - 128 in DEFAULT_SIGNALS else "preempted"
