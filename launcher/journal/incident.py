"""What ended a generation, as a value and as ``incidents/NNN.json``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftlaunch.launcher.decision.events import Failure
from ftlaunch.launcher.journal.records import plain
from ftlaunch.launcher.journal.rundir import write_json

VERSION = 1


@dataclass(frozen=True)
class FailureCause:
    """The first cause. ``kind`` is the value of a :class:`ftlaunch.launcher.decision.events.FailureKind`."""

    kind: str
    reason: str
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    host: str = ""
    at: float | None = None
    """CLOCK_MONOTONIC seconds of ``host``."""
    exit_code: int | None = None
    """Negative for a signal."""
    exception: str = ""
    message: str = ""
    traceback: str = ""
    place: str = ""
    step: int | None = None
    evidence: tuple[str, ...] = ()
    """Lines or blocks of text: stacks, kernel wait channel, out-of-memory counters."""


@dataclass(frozen=True)
class RankEnd:
    """How one rank of the generation ended."""

    rank: int
    local_rank: int
    host: str = ""
    pid: int | None = None
    exit_code: int | None = None
    at: float | None = None
    """CLOCK_MONOTONIC seconds of the death."""
    stopped_by_launcher: bool = False
    how: str = ""
    """What the launcher did to it: ``SIGKILL``, ``SIGTERM``, …"""


@dataclass(frozen=True)
class Moment:
    """One named point of the timeline, CLOCK_MONOTONIC seconds; names as in ``events.jsonl``."""

    name: str
    at: float


@dataclass(frozen=True)
class Diagnosed:
    """What a rank died of, as far as this node's evidence tells. ``kind`` and ``confidence`` as in
    :mod:`ftlaunch.launcher.evidence.diagnosis`; ``hint``: what would have helped, may be empty."""

    kind: str
    sentence: str
    confidence: str
    hint: str = ""
    rank: int | None = None

    def __str__(self) -> str:
        return self.sentence if self.confidence == "certain" else f"{self.sentence} ({self.confidence})"


@dataclass(frozen=True)
class Incident:
    """A generation's end. ``decision`` is ``restart`` or ``stop``."""

    generation: int
    cause: FailureCause
    decision: str
    decision_reason: str
    time: str = ""
    """Wall time at which it was recorded."""
    consequences: tuple[RankEnd, ...] = ()
    timeline: tuple[Moment, ...] = ()
    diagnosis: Diagnosed | None = None
    """Of the rank that brought the generation down, which need not be the first that failed."""
    others: tuple[Diagnosed, ...] = ()
    """Of all other ranks of this node that have ended, in order of death."""
    progress: str = ""
    """When each rank was last seen to make progress before the failure."""

    @property
    def phases_s(self) -> Mapping[str, float]:
        """Seconds from each moment's predecessor to it, in order of time."""
        ordered = sorted(self.timeline, key=lambda moment: moment.at)
        return {moment.name: round(moment.at - previous.at, 6) for previous, moment in itertools.pairwise(ordered)}


def cause_of(
    failure: Failure,
    *,
    rank: int | None = None,
    pid: int | None = None,
    host: str = "",
    evidence: tuple[str, ...] = (),
) -> FailureCause:
    """What the decision knew, with what only the outside knows: global rank, pid, host, evidence."""
    words = failure.words
    exit_code = failure.exit_code
    if exit_code is None and words is not None:
        exit_code = words.exit_code
    return FailureCause(
        kind=failure.kind.value,
        reason=failure.reason,
        rank=rank,
        local_rank=failure.local_rank,
        pid=pid,
        host=host,
        at=failure.at,
        exit_code=exit_code,
        exception=words.exception if words else "",
        message=words.message if words else "",
        traceback=words.traceback if words else "",
        place=words.place if words else "",
        step=failure.step,
        evidence=evidence,
    )


def to_json(incident: Incident) -> dict[str, Any]:
    """As JSON knows it, bounded in size."""
    shape: dict[str, Any] = plain({"version": VERSION, **asdict(incident), "phases_s": incident.phases_s})
    return shape


def write_incident(folder: Path, incident: Incident) -> Path:
    """Write ``NNN.json``, NNN the generation; writing again (with more of the timeline) replaces it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{incident.generation:03d}.json"
    write_json(path, to_json(incident))
    return path


def read_incidents(folder: Path) -> list[Incident]:
    """All incidents of a run in order; files that are none, or of a later version, are left out."""
    found = []
    try:
        paths = list(folder.glob("[0-9]*.json"))
    except OSError:
        return []
    for path in paths:
        try:
            found.append(from_json(json.loads(path.read_bytes())))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
    return sorted(found, key=lambda incident: incident.generation)


def from_json(shape: Mapping[str, Any]) -> Incident:
    """The reverse of :func:`to_json`. Raises ValueError, TypeError or KeyError for what is not an incident."""
    if shape["version"] != VERSION:
        raise ValueError(f"incident version {shape['version']}, this ftlaunch knows {VERSION}")
    cause = {**shape["cause"], "evidence": tuple(shape["cause"].get("evidence", ()))}
    return Incident(
        generation=int(shape["generation"]),
        cause=FailureCause(**cause),
        decision=str(shape["decision"]),
        decision_reason=str(shape["decision_reason"]),
        time=str(shape.get("time", "")),
        consequences=tuple(RankEnd(**end) for end in shape.get("consequences", ())),
        timeline=tuple(Moment(**moment) for moment in shape.get("timeline", ())),
        diagnosis=Diagnosed(**shape["diagnosis"]) if shape.get("diagnosis") else None,
        others=tuple(Diagnosed(**verdict) for verdict in shape.get("others", ())),
        progress=str(shape.get("progress", "")),
    )
