"""What must hold all along, and looking whether it does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftlaunch.launcher.host import proctree

WINDOW_S = 15.0
_LEAST_WINDOWS = 8
_OF_A_CHILD = 4
ALLOWED = {"descriptors": 8.0, "threads": 3.0, "PSS in MiB": 8.0, "keys in etcd": 12.0}
"""By how much each may grow between the first half of a life and the second."""
_SHOWN = 5


@dataclass
class Check:
    """One thing that must hold. ``seen``: what was looked at, in words."""

    name: str
    seen: str = ""
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing spoke against it."""
        return not self.violations


class Generations:
    """Which generations have living ranks, job-wide: by what the agents say they started."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self.looks = 0
        self.newest = -1

    def note(self, event: Mapping[str, Any]) -> None:
        """An agent has started the ranks of a generation."""
        self.newest = max(self.newest, event["generation"])
        for pid in event["pids"]:
            entry = proctree.read_entry(pid)
            if entry is not None:
                self._known[pid] = (event["generation"], entry.start_ticks)

    def look(self) -> str:
        """What is wrong at this moment, if anything."""
        self.looks += 1
        first = self._living()
        if len(set(first.values())) < 2:
            return ""
        # All that live now lived while those of the newest generation were seen above: no rank came in between.
        both = {pid: generation for pid, generation in self._living().items() if pid in first}
        if len(set(both.values())) < 2:
            return ""
        told = ", ".join(f"pid {pid} of generation {generation}" for pid, generation in sorted(both.items()))
        return f"ranks of several generations live at once: {told}"

    def _living(self) -> dict[int, int]:
        for pid, (_, ticks) in list(self._known.items()):
            entry = proctree.read_entry(pid)
            if entry is None or entry.start_ticks != ticks or entry.state in "ZX" or entry.exiting:
                del self._known[pid]
        return {pid: generation for pid, (generation, _) in self._known.items()}


class Gauges:
    """How much of each thing was in use, over time."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def add(self, whose: str, what: str, at: float, value: float) -> None:
        """``what`` is one of :data:`ALLOWED`."""
        self.samples.setdefault((whose, what), []).append((at, value))

    def add_process(self, whose: str, pid: int, at: float) -> None:
        """A process's descriptors, threads and memory; nothing if it is gone.

        Each child may have four descriptors, a standby's pidfd, socket and pipes, which do not count: how many
        standbys there are depends on how long ago the last fault was.
        """
        try:
            children = len(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
            descriptors = len(os.listdir(f"/proc/{pid}/fd")) - _OF_A_CHILD * children
            threads = len(os.listdir(f"/proc/{pid}/task"))
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            return
        pss = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
        if pss:
            self.add(whose, "descriptors", at, descriptors)
            self.add(whose, "threads", at, threads)
            self.add(whose, "PSS in MiB", at, int(pss[0]) / 1024)

    def check(self, what: str) -> Check:
        """Whether it grew more than is allowed, for everybody who was there long enough to tell."""
        grown = {whose: growth(found) for (whose, name), found in self.samples.items() if name == what}
        told = {whose: found for whose, found in grown.items() if found is not None}
        longest = [f"{whose} {first:.4g} → {last:.4g}" for whose, (first, last) in told.items()]
        check = Check(f"{what} do not grow", ", ".join(longest[:_SHOWN]) or "nobody was there long enough to tell")
        check.violations += [
            f"{whose}: {what} from {first:.4g} to {last:.4g}, allowed are {ALLOWED[what]:g} more"
            for whose, (first, last) in told.items()
            if last - first > ALLOWED[what]
        ]
        return check


def growth(samples: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The highest floor (the least value in a window of time) of the first half, and of the second.

    What is in use rises and falls with every recovery, and stays low in a long one; a leak lifts the floor for good.
    ``None`` for less than two minutes.
    """
    windows: dict[int, float] = {}
    for at, value in samples:
        number = int((at - samples[0][0]) // WINDOW_S)
        windows[number] = min(value, windows.get(number, value))
    # The last one is not whole.
    floors = [windows[number] for number in sorted(windows)[:-1]]
    half = len(floors) // 2
    return (max(floors[:half]), max(floors[half:])) if len(floors) >= _LEAST_WINDOWS else None


def dead_steps(folder: Path) -> Check:
    """No rank makes a step, or starts, in a generation after any rank was seen in a later one."""
    lines = []
    for path in sorted(folder.glob("steps-*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append({**json.loads(text), "rank": path.stem[6:]})
            except ValueError:
                # Cut off in the middle, when its writer was killed or its disk was full.
                continue
    lines.sort(key=lambda line: float(line["at"]))
    check = Check("no step of a dead generation", f"{len(lines)} lines in the ranks' own logs")
    newest = -1
    for line in lines:
        if line["generation"] < newest:
            check.violations.append(
                f"rank {line['rank']}: step {line['step']} of generation {line['generation']} at {line['at']:.3f}, "
                f"when generation {newest} had begun"
            )
        newest = max(newest, line["generation"])
    return check


def outbursts(outputs: Iterable[Path]) -> Check:
    """No agent shows a traceback of its own; what ranks say has a prefix."""
    check = Check("no traceback of an agent")
    count = 0
    for path in outputs:
        count += 1
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, start=1):
            if line.startswith("Traceback (most recent") or "InvalidTransition" in line:
                check.violations.append(f"{path}, line {number}: {line}")
    check.seen = f"{count} lives of agents"
    return check
