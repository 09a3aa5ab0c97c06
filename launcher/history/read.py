"""From a run directory to its :class:`History`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ftlaunch.launcher.history.ledger import Ledger
from ftlaunch.launcher.history.model import History
from ftlaunch.launcher.journal.incident import Incident, read_incidents
from ftlaunch.launcher.journal.records import EVENTS_FILE, read_events
from ftlaunch.launcher.journal.rundir import read_run_file


def read_history(run: Path) -> History:
    """Read what a run left, or has left so far. Lines and files that make no sense are passed over.

    Raises OSError when there are no events that can be read. About 5 us per event.
    """
    ledger = Ledger()
    for event in read_events(run / EVENTS_FILE):
        ledger.feed(event)
    facts = _facts(run)
    history = ledger.history()
    told = {incident.generation: incident for incident in read_incidents(run / "incidents") if _is_sound(incident)}
    known = {item.number for item in history.generations if item.failed is not None}
    incidents = {number: told.get(number) or _at(history.incidents[number], facts["host"]) for number in known}
    return replace(history, incidents=incidents, place=str(run), **facts)


def _is_sound(incident: Incident) -> bool:
    """Whether the parts that are shown are what they should be; a file may hold anything."""
    cause = incident.cause
    texts = [cause.kind, cause.reason, cause.host, cause.exception, cause.message, cause.traceback, cause.place]
    texts += [*cause.evidence, *(end.how for end in incident.consequences)]
    numbers = [cause.rank, cause.step, cause.exit_code, *(end.exit_code for end in incident.consequences)]
    ranks = [end.rank for end in incident.consequences]
    return (
        all(isinstance(text, str) for text in texts)
        and all(item is None or type(item) is int for item in numbers)
        and all(type(rank) is int for rank in ranks)
    )


def _at(incident: Incident, host: str) -> Incident:
    """Events do not say where they were written; a failure of a rank was here."""
    return incident if incident.cause.rank is None else replace(incident, cause=replace(incident.cause, host=host))


def _facts(run: Path) -> dict[str, Any]:
    facts = read_run_file(run) or {}
    command = facts.get("command")
    return {
        "run_id": str(facts.get("id") or run.name),
        "job_id": str(facts.get("job") or ""),
        "host": str(facts.get("host") or ""),
        "command": tuple(map(str, command)) if isinstance(command, list) else (),
    }
