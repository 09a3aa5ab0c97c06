"""Print what each recovery of a run cost, phase by phase, from the run directory's events.jsonl."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PHASES = (
    ("workers_stopped", "stopped what was left"),
    ("gpu_reclaimed", "GPU memory back"),
    ("rendezvous_completed", "agreed on the next generation"),
    ("workers_started", "started its workers"),
    ("training_resumed", "first new step"),
)


def recoveries(events: list[dict[str, Any]]) -> list[list[tuple[str, float]]]:
    """Return, for each failure, the phases that followed with the seconds since it was detected."""
    found: list[list[tuple[str, float]]] = []
    detected: float | None = None
    names = dict(PHASES)
    for event in events:
        if event["event"] == "failure_detected" and detected is None:
            detected = event["monotonic"]
            found.append([])
        elif event["event"] in names and detected is not None:
            found[-1].append((names[event["event"]], event["monotonic"] - detected))
            if event["event"] == "training_resumed":
                detected = None
    return found


def main(run_dir: str) -> int:
    """Print a block per recovery."""
    lines = Path(run_dir, "events.jsonl").read_text().splitlines()
    found = recoveries([json.loads(line) for line in lines])
    if not found:
        print("no failure was recorded in this run")
        return 1
    for phases in found:
        print(f"\nrecovered in {phases[-1][1]:.3f} s after the death was seen:" if phases else "\nnot recovered")
        for name, seconds in phases:
            print(f"  {seconds:7.3f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
