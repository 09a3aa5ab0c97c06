"""Read what tests/workloads/train_ddp.py wrote: what each fault cost, and the goodput of the whole run.

``python scripts/bench_lib/recovery.py DRILL_OUT...`` prints a line per directory.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Recovery:
    """One fault. Seconds from it to the first line of the first new process, and to the first step after it.

    ``inf`` for what never came.
    """

    step: int
    kind: str
    respawn_s: float
    resume_s: float


@dataclass(frozen=True)
class Goodput:
    """Shares of ``wall_s``: ``training`` counts each step once, ``infrastructure`` counts repeated steps as well."""

    training: float
    infrastructure: float
    wall_s: float


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of all ranks in the order of their time; a line that was cut off is left out."""
    found = []
    for path in sorted(folder.glob("rank*.jsonl")):
        rank = int(path.stem.removeprefix("rank"))
        found += [{**event, "rank": rank} for event in _whole_lines(path)]
    return sorted(found, key=lambda event: float(event["t"]))


def recoveries(story: Sequence[dict[str, Any]]) -> list[Recovery]:
    """Return one entry per fault in ``story``, as :func:`events` gives it."""
    found = []
    for fault in (event for event in story if event["event"] == "fault"):
        starts = [event for event in story if event["event"] == "start" and event["t"] > fault["t"]]
        # Processes that were there before the fault may still end a step after it.
        new = {event["pid"] for event in starts}
        steps = [event["t"] for event in story if event["event"] == "step" and event["pid"] in new]
        respawn = min((event["t_first"] for event in starts), default=float("inf")) - fault["t"]
        resume = min((at for at in steps if at > fault["t"]), default=float("inf")) - fault["t"]
        found.append(Recovery(fault["step"], fault["kind"], max(0.0, respawn), resume))
    return found


def goodput(story: Sequence[dict[str, Any]], wall_s: float, rank: int = 0) -> Goodput:
    """Return how much of ``wall_s`` went into steps, as one rank saw it. A step's time is that since the one before."""
    first: dict[int, float] = {}
    total = 0.0
    before: dict[int, float] = {}
    for event in story:
        if event["rank"] != rank or event["event"] not in ("start", "step"):
            continue
        if event["event"] == "step":
            took = event["t"] - before[event["pid"]]
            total += took
            first.setdefault(event["step"], took)
        before[event["pid"]] = event["t"]
    return Goodput(sum(first.values()) / wall_s, total / wall_s, wall_s)


def done(story: Iterable[dict[str, Any]]) -> set[int]:
    """Return the ranks that did all their steps."""
    return {event["rank"] for event in story if event["event"] == "done"}


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def main(folders: Sequence[str]) -> None:
    """Print a line per directory."""
    for folder in folders:
        found = recoveries(events(Path(folder)))
        each = " ".join(
            f"[{r.kind} at {r.step}: respawn {r.respawn_s:.3f} s, resume {r.resume_s:.3f} s]" for r in found
        )
        median = statistics.median([r.resume_s for r in found]) if found else float("nan")
        print(f"{folder}: {len(found)} faults, median resume {median:.3f} s {each}")


if __name__ == "__main__":
    main(sys.argv[1:])
