"""Print what each recovery of a run cost, phase by phase, from the run directory's events.jsonl."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHASES = {
    "failure_detected": "the agent knows",
    "workers_stopped": "the old workers are gone",
    "gpu_reclaimed": "GPU memory is back, if any was used",
    "rendezvous_completed": "the next generation is agreed on",
    "workers_started": "its workers run",
    "training_resumed": "first new step",
}


@dataclass
class Recovery:
    """One failure: why, and the seconds from the death to each phase."""

    reason: str
    died_at: float
    phases: dict[str, float] = field(default_factory=dict)


def recoveries(events: Iterable[dict[str, Any]]) -> list[Recovery]:
    """Return one entry per failure that ended a generation."""
    found: list[Recovery] = []
    for event in events:
        name = event["event"]
        if name == "failure_detected":
            found.append(Recovery(event["reason"] or "", event.get("at") or event["monotonic"]))
        if name == "cause_corrected" and found:
            found[-1].reason = event["reason"] or ""
        if name in PHASES and found:
            found[-1].phases.setdefault(name, event["monotonic"] - found[-1].died_at)
    return found


def describe(recovery: Recovery) -> list[str]:
    """Return the lines for one recovery."""
    what = textwrap.shorten(recovery.reason, 80, placeholder=" …")
    # What a rank suffered (was killed by …) or, with its name, what it raised.
    what = f"a rank {what}" if what[:1].islower() else f"a rank failed with {what}"
    resumed, started = recovery.phases.get("training_resumed"), recovery.phases.get("workers_started")
    if resumed is not None:
        head = f"{what}: training resumed {resumed:.3f} s later"
    elif started is not None:
        head = f"{what}: new workers ran {started:.3f} s later"
    else:
        head = f"{what}: not recovered"
    ordered = sorted(recovery.phases.items(), key=lambda phase: phase[1])
    return [head, *(f"  {seconds:7.3f} s  {PHASES[name]}" for name, seconds in ordered)]


def main(run_dir: str) -> int:
    """Print a block per recovery; 1 when there was none."""
    lines = Path(run_dir, "events.jsonl").read_text(encoding="utf-8").splitlines()
    found = recoveries(json.loads(line) for line in lines)
    if not found:
        print("no failure was recorded in this run")
        return 1
    for recovery in found:
        print("\n".join(["", *describe(recovery)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
