"""All that the agent needs to judge its ranks, in one object: messages, exits and looks in, verdicts out. Pure.

The agent calls, whenever the socket is readable, a deadline has come or a child has changed: :meth:`Watch.hear` for all
that was drained, :meth:`Watch.exited` for every death; then, if ``hear`` was true, the deadline has come or a child has
changed, :meth:`Watch.assess` with a fresh look at :meth:`Watch.pids`, and sleeps until its ``next_deadline``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ftlaunch.heartbeat.watching import elsewhere, stalls
from ftlaunch.heartbeat.watching.elsewhere import Account, Survey
from ftlaunch.heartbeat.watching.limits import Limits, Settings
from ftlaunch.heartbeat.watching.listener import Heard
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.stragglers import Straggler, StragglerWatch
from ftlaunch.heartbeat.watching.tracks import Tracks
from ftlaunch.heartbeat.watching.verdicts import Assessment, Progress, Stall

LATE_S = 1.0
"""A deadline that is noticed so much later means that the agent itself was stopped, or starved."""
_STRAGGLERS_S = 10.0
_QUIET_S = 1.0


class Watch:
    """The ranks of this node through all generations."""

    def __init__(self, settings: Settings, now: float = 0.0) -> None:
        self.limits = Limits(settings)
        self.tracks = Tracks(now=now)
        self.stragglers = StragglerWatch()
        self._next_deadline = math.inf
        self._stragglers_at = 0.0
        self._asleep_s: float | None = None

    def begin(self, generation: int, pids: Sequence[int], now: float, first_rank: int = 0) -> None:
        """These processes, by local rank, are the ranks now. Whatever was open in an older generation is gone with it.

        ``first_rank``: the global number of local rank 0, for sentences.
        """
        self.tracks = Tracks(generation, pids, now, first_rank)
        self.stragglers.forget()
        self._next_deadline = math.inf
        self._stragglers_at = now + _STRAGGLERS_S

    def hear(self, heard: Heard) -> bool:
        """Take in a message; true when a deadline may be earlier now, so :meth:`assess` is due. 2 µs for a step."""
        return self.tracks.hear(heard, self.limits)

    def exited(self, local_rank: int, exit_code: int, now: float) -> None:
        """A rank has ended; call :meth:`assess` after it, since the exit barrier may have begun."""
        self.tracks.exited(local_rank, exit_code, now)

    def pids(self) -> dict[int, int]:
        """Whose state :meth:`assess` wants, by local rank: the process that speaks for the rank, else its first."""
        return {t.local_rank: t.pid if t.voice_ended else t.voice for t in self.tracks.alive}

    def wants_children(self, now: float) -> bool:
        """Whether the next look should count the CPU time of descendants: not worth its milliseconds otherwise."""
        tracks = self.tracks
        return tracks.left_at is not None or any(now - track.progress_at > _QUIET_S for track in tracks.alive)

    def assess(self, states: Mapping[int, ProcState], now: float, asleep_s: float = 0.0) -> Assessment:
        """Judge every rank; see :mod:`ftlaunch.heartbeat.watching.stalls`.

        ``asleep_s``: CLOCK_BOOTTIME minus CLOCK_MONOTONIC. When it has grown the machine was suspended, and everybody
        gets time to come back. When the last deadline has passed long ago, the agent was stopped, and as long is left
        out of every silence.
        """
        if self._asleep_s is not None and asleep_s - self._asleep_s > LATE_S:
            self.tracks.restart_timers(now)
        self._asleep_s = asleep_s
        if now - self._next_deadline > LATE_S:
            self.tracks.paused(now, now - self._next_deadline)
        assessment = stalls.assess(self.tracks, self.limits, states, now)
        self._next_deadline = assessment.next_deadline
        return assessment

    def excuse(self, now: float) -> None:
        """Everybody's silence begins anew: the socket was flooded."""
        self.tracks.restart_timers(now)

    def account(self, states: Mapping[int, ProcState], now: float) -> Account:
        """What agents of other nodes must know of the ranks here before they condemn one of theirs."""
        return elsewhere.account(self.tracks, self.limits, states, now)

    def look(self, states: Mapping[int, ProcState], now: float) -> float:
        """Note what everybody does, unless that was noted in this silence already; returns since when it is known."""
        looks = [track.quiet_look.at for track in self.tracks.alive if track.quiet_look is not None]
        if not looks:
            stalls.look_at_all(self.tracks, states, now)
        return min(looks, default=now)

    def heed(self, survey: Survey, now: float) -> Stall | None:
        """Let what all nodes told count here; returns the stall of a rank here if that is what holds up the others.

        Call :meth:`assess` after it.
        """
        track = elsewhere.accused(survey, self.tracks, self.limits, now)
        elsewhere.heed(survey, self.tracks, now)
        return None if track is None else elsewhere.accusation(survey, track, now)

    def be_patient(self, stall: Stall, survey: Survey | None, now: float) -> bool:
        """Whether a stall that nothing told by others excuses is left alone for now all the same."""
        until = elsewhere.patience(stall, survey, self.tracks, self.limits, now)
        if until is not None:
            self.tracks.patient_until = until
        return until is not None

    def convict(self, stall: Stall) -> None:
        """The generation ends because of it: if by a learnt limit, that does not hold at this place next time."""
        if stall.learnt:
            track = self.tracks.ranks[stall.local_rank]
            self.limits.distrust(track.beats, track.step)

    def note_end(self, now: float) -> None:
        """The generation has ended, whatever the reason."""
        elsewhere.take_note(self.tracks, self.limits, now)

    def find_stragglers(self, now: float) -> list[Straggler]:
        """Who became a straggler and who no longer is. Looks at most every 10 s; call it after :meth:`assess`."""
        if now < self._stragglers_at:
            return []
        self._stragglers_at = now + _STRAGGLERS_S
        return self.stragglers.update({track.local_rank: list(track.series) for track in self.tracks.alive}, now)

    def progress(self) -> Progress:
        """How far this generation came."""
        return self.tracks.progress()

    def is_saving(self, local_rank: int) -> bool:
        """Whether the rank is known to be in a ``checkpoint`` section."""
        track = self.tracks.ranks[local_rank] if local_rank < len(self.tracks.ranks) else None
        return track is not None and any(section.name == "checkpoint" for section in track.sections or ())
