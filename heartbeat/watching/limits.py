"""How long a silence may last: what the user said, else what this job has shown, else generous defaults. Pure.

One table for each node: all its ranks learn into it, and it is kept across generations. A *gap* is a silence that
ended by itself, measured by the clock of the worker, so the agent's own pauses are not in it.

=============================  =====================================================================================
``--section-timeout NAME=S``   exactly S, for ``step`` and ``init`` too
``init``                       ``--init-timeout``
before the first step          ``--init-timeout``
``step`` (no section is open)  ``--hang-timeout``, until enough gaps were seen; then the largest gap times
                               ``--hang-safety-factor``, at least ``--hang-floor``, at least what the job's first
                               steps took, never more than ``--hang-timeout``
``checkpoint``, ``eval``       likewise, but between ten times ``--hang-floor`` and the larger of ``--hang-timeout``
                               and ``--init-timeout``: storage and data are less regular than steps
other sections                 as ``step``
=============================  =====================================================================================

Where other nodes take part and do not tell what their ranks do (``untold``), ten times ``--hang-floor`` holds for every
section: the ranks here may wait for a checkpoint there.

Two things keep what was learnt from doing harm. It does not hold during the first steps of a generation, which may
compile. And after it has cost a generation its life, it does not hold again until the next one is past that place: if
the silence was the script's own (an evaluation without a section), the second time it is allowed to end.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

INIT = "init"
STEP = "step"
CHECKPOINT = "checkpoint"
EVAL = "eval"

DEFAULT_INIT_TIMEOUT_S = 1800.0
WARM_UP = 5
"""So many gaps at the start of each rank are its first steps: they compile, and fill caches."""
MIN_STEPS = 20
"""So many gaps between beats are enough to know a section."""
_VISIT_WEIGHT = 7
"""A visit to a section as a whole tells more: three of them are enough."""
_ROOMY = 10.0
_WARM_MARGIN = 1.5
_PLACE_MARGIN = 10
_MAX_SECTIONS = 256


class Settings(Protocol):
    """What the user chose. Seconds; zero or less, or infinite: no limit."""

    @property
    def init_timeout_s(self) -> float: ...
    @property
    def hang_timeout_s(self) -> float: ...
    @property
    def section_timeouts_s(self) -> Mapping[str, float]: ...
    @property
    def safety_factor(self) -> float: ...
    @property
    def floor_s(self) -> float: ...
    @property
    def dstate_timeout_s(self) -> float: ...
    @property
    def exit_barrier_timeout_s(self) -> float: ...
    @property
    def ignore_stopped(self) -> bool: ...


class Source(enum.Enum):
    """Where a limit comes from."""

    CONFIGURED = "configured"
    LEARNT = "learnt"
    DEFAULT = "default"


class Limit(NamedTuple):
    """``seconds`` is infinite where there is no limit."""

    seconds: float
    source: Source


class Row(NamedTuple):
    """One section for ``ftctl status``; ``gaps``: how many it was learnt from."""

    section: str
    limit: Limit
    longest_s: float
    gaps: int


class Observed:
    """What was seen of one section."""

    def __init__(self) -> None:
        self.beats = 0
        self.visits = 0
        self.longest_s = 0.0
        self.warm_s = 0.0

    @property
    def enough(self) -> bool:
        """Whether it is known well enough to go by."""
        return self.beats + _VISIT_WEIGHT * self.visits >= MIN_STEPS


class Limits:
    """The table. ``version`` grows whenever a limit may have become shorter."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.version = 0
        self.start_s = 0.0
        """Longest silence directly before a first step."""
        self.distrusted_at: int | None = None
        """The script's own step near which what was learnt does not hold."""
        self.distrusted_until = 0
        """Steps of a generation within which what was learnt does not hold."""
        self.trained: set[int] = set()
        """Local ranks that have ever made a step."""
        self._seen: dict[str, Observed] = {}

    # -- learning -----------------------------------------------------------------------------------------------

    def learn(self, section: str, gap_s: float, *, warm: bool = False, visit: bool = False) -> None:
        """A silence of ``gap_s`` ended with a beat, or with the section itself (``visit``).

        ``warm``: it was among the first steps of a rank.
        """
        seen = self._note(section, gap_s, warm)
        if seen is not None and not warm:
            enough = seen.enough
            if visit:
                seen.visits += 1
            else:
                seen.beats += 1
            if not enough and seen.enough:
                self.version += 1

    def learn_part(self, section: str, gap_s: float, *, warm: bool = False) -> None:
        """A silence of ``gap_s`` ended with another section: as long as that at least, but no measure by itself."""
        self._note(section, gap_s, warm)

    def _note(self, section: str, gap_s: float, warm: bool) -> Observed | None:
        seen = self._seen.get(section)
        if seen is None:
            if len(self._seen) >= _MAX_SECTIONS:
                return None
            seen = self._seen[section] = Observed()
        if warm:
            seen.warm_s = max(seen.warm_s, gap_s)
        elif gap_s > seen.longest_s:
            seen.longest_s = gap_s
        return seen

    def learn_start(self, gap_s: float) -> None:
        """The silence before a rank's first step of a generation, from the last sign of its start-up."""
        self.start_s = max(self.start_s, gap_s)

    def distrust(self, steps: int, at: int | None = None) -> None:
        """A learnt limit ended a generation after so many of its steps: give the next one time at that place.

        ``at``: the script's own step, if it tells. It names the place in every generation, wherever that begins.
        """
        self.distrusted_at = at
        self.distrusted_until = 0 if at is not None else steps + _PLACE_MARGIN

    # -- answers ------------------------------------------------------------------------------------------------

    def of(self, section: str, *, steps: int | None = None, at: int | None = None) -> Limit:
        """The limit of a section for a rank that has made ``steps`` steps in this generation; ``None``: any number.

        ``at``: the script's own step, if it tells.
        """
        configured = self.settings.section_timeouts_s.get(section)
        if configured is not None:
            return Limit(_or_none(configured), Source.CONFIGURED)
        ceiling = self._ceiling(section)
        if steps == 0:
            # Before the first step a checkpoint is loaded, which may take as long as a start may.
            return Limit(max(ceiling, _or_none(self.settings.init_timeout_s)), Source.DEFAULT)
        learnt = self._learnt(section) if steps is None or self._holds(steps, at) else None
        if learnt is None or learnt >= ceiling:
            return Limit(ceiling, Source.DEFAULT)
        return Limit(learnt, Source.LEARNT)

    def ceiling(self, section: str) -> float:
        """The limit of a section if nothing had been learnt."""
        configured = self.settings.section_timeouts_s.get(section)
        return self._ceiling(section) if configured is None else _or_none(configured)

    def untold_s(self, section: str) -> float:
        """How long a learnt limit lasts while ranks of other nodes may be in sections that nobody tells of."""
        ceiling, learnt = self.ceiling(section), self._learnt(section, roomy=True)
        return ceiling if learnt is None else min(learnt, ceiling)

    def most_lenient(self, *, steps: int | None = None, at: int | None = None) -> Limit:
        """For a rank that is in some section, nobody knows which."""
        names = {STEP, CHECKPOINT, INIT, *self._seen, *self.settings.section_timeouts_s}
        return max((self.of(name, steps=steps, at=at) for name in names), key=lambda limit: limit.seconds)

    def longest_s(self, section: str) -> float:
        """The longest silence ever seen to end by itself, first steps included."""
        seen = self._seen.get(section)
        return max(seen.longest_s, seen.warm_s) if seen is not None else 0.0

    def table(self) -> list[Row]:
        """Every section that was seen or configured, and those that there always are."""
        names = dict.fromkeys((STEP, INIT, CHECKPOINT, EVAL, *self.settings.section_timeouts_s, *sorted(self._seen)))
        return [self._row(name) for name in names]

    def _row(self, name: str) -> Row:
        seen = self._seen.get(name)
        gaps = seen.beats + seen.visits if seen is not None else 0
        return Row(name, self.of(name), self.longest_s(name), gaps)

    def _holds(self, steps: int, at: int | None) -> bool:
        if at is not None and self.distrusted_at is not None and abs(at - self.distrusted_at) <= _PLACE_MARGIN:
            return False
        return steps > WARM_UP and steps > self.distrusted_until

    def _ceiling(self, section: str) -> float:
        hang, init = _or_none(self.settings.hang_timeout_s), _or_none(self.settings.init_timeout_s)
        if section == INIT:
            return init
        return max(hang, init) if section in (CHECKPOINT, EVAL) else hang

    def _learnt(self, section: str, roomy: bool = False) -> float | None:
        seen = self._seen.get(section)
        if section == INIT or seen is None or not seen.enough:
            # How long other nodes take to come says nothing about next time.
            return None
        floor = self.settings.floor_s * (_ROOMY if roomy or section in (CHECKPOINT, EVAL) else 1.0)
        start = self.start_s if section == STEP else 0.0
        return max(seen.longest_s * self.settings.safety_factor, floor, seen.warm_s * _WARM_MARGIN, start)


def _or_none(seconds: float) -> float:
    return seconds if seconds > 0 else math.inf
