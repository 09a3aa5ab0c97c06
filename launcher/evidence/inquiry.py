"""Why did this generation end? A quick look as soon as a rank has failed, the whole story when the next one runs.

Nothing waits for it: the ranks are killed and started anew meanwhile. Only counters that could be lost are read early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ftlaunch.launcher.evidence.case import Answer, Case
    from ftlaunch.launcher.evidence.collect import NodeWatch
    from ftlaunch.launcher.evidence.diagnosis import NodeEvidence
    from ftlaunch.launcher.gpu.model import XidEvent
    from ftlaunch.launcher.journal.incident import Diagnosed

_MOVED_S = 2.0


class Sources(Protocol):
    """Where facts come from that the agent's state does not hold."""

    def tail(self, generation: int, local_rank: int) -> Sequence[bytes]:
        """The last lines that the rank wrote to stderr."""

    def ages(self, at: float) -> Mapping[int, float]:
        """By local rank: how long before that moment it made progress."""

    def xids(self) -> Sequence[XidEvent]:
        """All critical errors that the GPU driver ever reported."""

    def gpus(self) -> Mapping[int, str]:
        """By pid: the UUID of its device, where that is known."""

    def ended_by_guardian(self) -> bool:
        """Whether the guardian has ended the ranks since this was asked last."""

    def warn(self, text: str) -> None:
        """Tell the user."""


class Inquiry:
    """Follows one generation at a time, once it is open."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._watch: NodeWatch | None = None
        self._current: tuple[int, Sequence[int]] = (-1, ())
        self._xids_before: dict[int, int] = {}
        """How many GPU errors there had been when a generation began; of the last two."""
        self._generation = -1
        """The one whose counters were taken."""
        self._early: NodeEvidence | None = None
        """Of the current generation, read when its first rank failed."""
        self._kept: tuple[int, NodeEvidence] | None = None
        """Of the one before."""
        self._ended_by_guardian = -1
        """The last generation that the guardian ended."""
        self._timers: list[asyncio.Handle] = []

    def open(self) -> None:
        """Begin to follow whatever runs now, and warn once where that may not help."""
        from ftlaunch.launcher.evidence.collect import open_node_watch
        from ftlaunch.launcher.evidence.oom import warn_of_group_kill

        self._watch = open_node_watch()
        warning = warn_of_group_kill()
        if warning:
            self.sources.warn(warning)
        self.begin_soon(*self._current)

    def begin_soon(self, generation: int, pids: Sequence[int]) -> None:
        """These ranks have just been started: remember where all counters stand, after what is being done now."""
        if self._current[0] != generation:
            self._ask_for_the_guardian(self._current[0])
            before, self._current = self._current[0], (generation, pids)
            self._xids_before = {before: self._xids_before.get(before, 0), generation: len(self.sources.xids())}
        self._cancel()
        if self._watch is not None and pids:
            loop = asyncio.get_running_loop()
            self._timers = [loop.call_soon(self._begin), loop.call_later(_MOVED_S, self.refresh)]

    def refresh(self) -> None:
        """The ranks have settled: some may have moved to control groups of their own."""
        if self._watch is not None:
            self._watch.refresh()

    def note(self, generation: int) -> None:
        """A rank has failed: read what could be lost soon. Below 1 ms."""
        self._ask_for_the_guardian(generation)
        if self._watch is not None and generation == self._generation:
            self._early = self._watch.look(self.sources.xids())

    def judge_first(self, case: Case) -> Diagnosed | None:
        """The verdict on the rank that failed first; about 1 ms."""
        from ftlaunch.launcher.evidence.case import judge_first

        generation = case.failure.generation
        return judge_first(case, self._look(generation), partial(self.sources.tail, generation))

    def investigate(self, case: Case) -> Answer:
        """Judge all ranks of this node. A few ms."""
        from ftlaunch.launcher.evidence.case import judge_all

        generation = case.failure.generation
        return judge_all(case, self._look(generation), partial(self.sources.tail, generation))

    def close(self) -> None:
        """Stop following."""
        self._cancel()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self) -> None:
        if self._watch is None:
            return
        if self._generation >= 0:
            # Before the counters are taken anew.
            self._kept = (self._generation, self._look(self._generation))
        self._early = None
        self._generation, pids = self._current
        self._watch.begin(pids, self.sources.xids()[: self._xids_before[self._generation]])

    def _ask_for_the_guardian(self, generation: int) -> None:
        if self.sources.ended_by_guardian():
            self._ended_by_guardian = generation

    def _look(self, generation: int) -> NodeEvidence:
        self._ask_for_the_guardian(generation)
        return replace(self._counted(generation), ended_by_guardian=generation == self._ended_by_guardian)

    def _counted(self, generation: int) -> NodeEvidence:
        from ftlaunch.launcher.evidence.diagnosis import NOTHING_KNOWN, NodeEvidence

        if self._watch is not None and generation == self._generation:
            now, early = self._watch.look(self.sources.xids()), self._early
            # A control group may be gone together with its last process, and its counters with it.
            return replace(now, oom=early.oom) if early is not None and early.oom.kills and not now.oom.kills else now
        if self._kept is not None and self._kept[0] == generation:
            return self._kept[1]
        if generation not in self._xids_before:
            return NOTHING_KNOWN
        # It ended before its counters were taken: the driver's word is all there is.
        return NodeEvidence(xids=tuple(self.sources.xids()[self._xids_before[generation] :]))

    def _cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
