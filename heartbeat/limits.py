"""How long a rank may be silent: generous until the job's own rhythm is known, then measured. Pure.

A limit is the largest gap seen in this job times a safety factor, never below the floor and never above the time-out
that holds until it is known. Gaps are measured between the senders' own clock readings, so an agent that was paused
does not distort them. All ranks count together, and what was learned outlives the generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEP = "step"
INIT = "init"
WARM_UP = 3
"""First gaps of a generation that teach nothing: compilation, caches, the first batch."""
ENOUGH = 5
"""Gaps after which a limit counts as known; one is enough for a section, which is rarer."""


@dataclass(frozen=True)
class Limit:
    """Seconds, and where they come from: ``option``, ``measured``, ``time-out`` (not known yet)."""

    seconds: float
    origin: str


@dataclass(frozen=True)
class LimitSettings:
    """As on the command line, in seconds."""

    init_timeout_s: float = 1800.0
    hang_timeout_s: float = 600.0
    sections_s: Mapping[str, float] = field(default_factory=dict)
    safety_factor: float = 10.0
    floor_s: float = 60.0


class Limits:
    """Learns gaps by name, ``step`` or a section's."""

    def __init__(self, settings: LimitSettings) -> None:
        self._settings = settings
        self._largest: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def learn(self, name: str, gap_s: float) -> None:
        """A gap between two steps, or the length of a section, that turned out to be no stall."""
        if gap_s < 0:
            return
        self._largest[name] = max(gap_s, self._largest.get(name, 0.0))
        self._count[name] = self._count.get(name, 0) + 1

    def limit(self, name: str) -> Limit:
        """The limit that holds now for ``step`` or a section."""
        settings = self._settings
        if name in settings.sections_s:
            return Limit(settings.sections_s[name], "option")
        ceiling = max(settings.init_timeout_s, settings.hang_timeout_s) if name == INIT else settings.hang_timeout_s
        if self._count.get(name, 0) < (ENOUGH if name == STEP else 1):
            return Limit(ceiling, "time-out")
        measured = max(settings.floor_s, self._largest[name] * settings.safety_factor)
        return Limit(measured, "measured") if measured < ceiling else Limit(ceiling, "time-out")

    @property
    def init(self) -> Limit:
        """Until the first beat."""
        return Limit(self._settings.init_timeout_s, "option")

    @property
    def ceiling(self) -> Limit:
        """When it is not known what the rank is doing."""
        settings = self._settings
        return Limit(max(settings.hang_timeout_s, *settings.sections_s.values(), 0.0), "time-out")

    def table(self) -> dict[str, Limit]:
        """All names with a limit of their own, for people."""
        names = dict.fromkeys((STEP, *self._settings.sections_s, *self._largest))
        return {name: self.limit(name) for name in names}

    def snapshot(self) -> dict[str, Any]:
        """What was learned, as JSON."""
        return {name: [gap, self._count[name]] for name, gap in self._largest.items()}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Add what another agent has learned. What is not of :meth:`snapshot`'s shape is left out."""
        for name, value in snapshot.items():
            if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(v, (int, float)) for v in value):
                self._largest[str(name)] = max(float(value[0]), self._largest.get(str(name), 0.0))
                self._count[str(name)] = max(int(value[1]), self._count.get(str(name), 0))
