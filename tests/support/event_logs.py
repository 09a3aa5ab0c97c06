"""Event logs written by hand: what an agent would have recorded, without an agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

_EPOCH = datetime(2026, 5, 4, 12, 0, 0, tzinfo=timezone.utc)
Event = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A generation that fails: what it did before, and how long each phase of the recovery took."""

    steps: int
    kind: str = "signal"
    reason: str = "was killed by SIGKILL"
    local_rank: int | None = 0
    silence_s: float = 0.0
    """From the last step to the failure."""
    detected_s: float = 0.001
    stopped_s: float = 0.02
    reclaimed_s: float = 0.01
    rendezvous_s: float = 0.002
    started_s: float = 0.02
    setup_s: float = 0.3
    """Of the generation after it."""
    kept: int | None = None
    """How many of all steps so far the next generation finds done; ``None``: all of them."""


@dataclass
class EventLogWriter:
    """Collects events of one node; ``at`` is its monotonic clock."""

    at: float = 1000.0
    nproc: int = 2
    nodes: int = 1
    group_rank: int = 0
    step_s: float = 0.1
    explicit: bool = True
    """Whether the script tells its step numbers."""
    events: list[Event] = field(default_factory=list)
    started: float = 1000.0

    def write(self, name: str, generation: int | None = None, after_s: float = 0.0, **fields: Any) -> None:
        """One event, ``after_s`` seconds after the one before."""
        self.at += after_s
        wall = (_EPOCH + timedelta(seconds=self.at - self.started)).isoformat(timespec="microseconds")
        event = {"time": wall, "monotonic": self.at, "event": name, "generation": generation, "rank": None}
        self.events.append({**event, "reason": None, **fields})

    def start(self, generation: int, rendezvous_s: float = 0.002, started_s: float = 0.02, warm: int = 0) -> None:
        """A generation is agreed on and its ranks are started."""
        self.agree(generation, rendezvous_s)
        self.launch(generation, started_s, warm)

    def agree(self, generation: int, after_s: float) -> None:
        """``rendezvous_completed``"""
        world = self.nproc * self.nodes
        facts = {"nodes": self.nodes, "world_size": world, "group_rank": self.group_rank}
        self.write("rendezvous_completed", generation, after_s, **facts)

    def launch(self, generation: int, after_s: float, warm: int = 0) -> None:
        """``workers_started``"""
        pids = list(range(100 * generation + 10, 100 * generation + 10 + self.nproc))
        self.write("workers_started", generation, after_s, pids=pids, warm=warm)

    def train(self, generation: int, first: int, count: int, setup_s: float) -> None:
        """Steps ``first``, …; the first beat comes one step after the set-up."""
        self.write("training_resumed", generation, setup_s + self.step_s)
        since = self.at
        self._progress(generation, first, 1, since)
        self.at += self.step_s * (count - 1)
        self._progress(generation, first + count - 1, count, since)

    def _progress(self, generation: int, step: int, ticks: int, since: float) -> None:
        told = {"step": step, "ticks": 0} if self.explicit else {"step": None, "ticks": ticks}
        self.write("progress", generation, beating_since=since, last_beat=self.at, checkpoints=0, **told)

    def fail(self, generation: int, fault: Fault, restart: bool = True) -> None:
        """The generation fails and is cleared."""
        died = self.at + fault.silence_s
        self.at = died
        rank = None if fault.local_rank is None else self.group_rank * self.nproc + fault.local_rank
        where = {"rank": rank, "local_rank": fault.local_rank}
        self.write(
            "failure_detected", generation, fault.detected_s, at=died, kind=fault.kind, **where, reason=fault.reason
        )
        decision = {"decision": "restart" if restart else "stop", "rank": rank}
        self.write("decided", generation, reason="restart 1" if restart else "no restart", **decision)
        if restart:
            self.agree(generation + 1, fault.rendezvous_s)
        self.write("workers_stopped", generation, fault.stopped_s)
        if restart:
            self.write("gpu_reclaimed", generation, fault.reclaimed_s)

    def finish(self, generation: int, after_s: float = 0.5, code: int = 0) -> None:
        """``job_finished``"""
        self.write(
            "job_finished", generation, after_s, exit_code=code, reason="all ranks succeeded" if not code else "no"
        )

    def run(self, faults: Sequence[Fault], total: int, setup_s: float = 0.5) -> list[Event]:
        """A whole job of ``total`` steps with these faults."""
        self.write("job_started")
        self.start(0)
        done, setup = 0, setup_s
        for generation, fault in enumerate(faults):
            if fault.steps:
                self.train(generation, done + 1, fault.steps, setup)
            self.fail(generation, fault)
            self.launch(generation + 1, fault.started_s)
            done = done + fault.steps if fault.kept is None else fault.kept
            setup = fault.setup_s
        self.train(len(faults), done + 1, total - done, setup)
        self.finish(len(faults))
        return self.events


def write_run(folder: Path, events: Sequence[Event | bytes], facts: Mapping[str, Any] | None = None) -> Path:
    """A run directory with these events; ``bytes`` are written as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n" for event in events]
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    told = {"id": folder.name, "host": "node0", "command": ["train.py"], "finished": True, "exit_code": 0}
    (folder / "run.json").write_text(json.dumps({**told, **(facts or {})}))
    return folder
