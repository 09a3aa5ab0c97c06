"""Ranks that speak without being there: messages with every time and number given by the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftlaunch.heartbeat.watching.limits import Limits
from ftlaunch.heartbeat.watching.listener import Heard
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.stalls import assess
from ftlaunch.heartbeat.watching.tracks import Tracks
from ftlaunch.heartbeat.watching.verdicts import Assessment, Stall
from ftlaunch.heartbeat.wire import Kind, Message
from ftlaunch.launcher.config import HeartbeatConfig

FIRST_PID = 1000


class Speaker:
    """One worker's side: counts sequence numbers and section serials as a worker does."""

    def __init__(self, local_rank: int = 0, pid: int | None = None, generation: int = 0) -> None:
        self.local_rank = local_rank
        self.pid = FIRST_PID + local_rank if pid is None else pid
        self.generation = generation
        self.sections: list[str] = []
        self.sequence = 0
        self.serial = 0
        self.ticks = 0

    def say(
        self,
        kind: Kind,
        at: float,
        step: int | None = None,
        payload: Mapping[str, Any] | None = None,
        received_at: float | None = None,
    ) -> Heard:
        """One message, sent at ``at`` and received at the same moment unless told."""
        self.sequence += 1
        message = Message(
            kind, self.generation, self.local_rank, self.sequence, self.serial, step, round(at * 1e9), payload or {}
        )
        return Heard(message, self.pid, at if received_at is None else received_at)

    def beat(self, at: float, step: int | None = None, **info: Any) -> Heard:
        return self.say(Kind.BEAT, at, step, {"info": info} if info else None)

    def tick(self, at: float) -> Heard:
        self.ticks += 1
        return self.say(Kind.TICK, at, self.ticks)

    def hello(self, at: float, phase: str = "script") -> Heard:
        return self.say(Kind.HELLO, at, payload={"pid": self.pid, "phase": phase})

    def open(self, name: str, at: float) -> Heard:
        return self._change([*self.sections, name], at)

    def close(self, at: float) -> Heard:
        return self._change(self.sections[:-1], at)

    def _change(self, sections: list[str], at: float) -> Heard:
        self.sections = sections
        self.serial += 1
        return self.say(Kind.SECTION, at, payload={"sections": sections})


class Node:
    """The agent's pure side: tracks, limits, states and speakers of some ranks."""

    def __init__(self, ranks: int = 1, now: float = 0.0, **options: Any) -> None:
        self.config = HeartbeatConfig(**options)
        self.limits = Limits(self.config)
        self.speakers: list[Speaker] = []
        self.states: dict[int, ProcState] = {}
        self.tracks = Tracks()
        self.begin(0, ranks, now)

    def begin(self, generation: int, ranks: int, now: float) -> None:
        """A generation of fresh processes."""
        pids = [FIRST_PID + 100 * generation + rank for rank in range(ranks)]
        self.speakers = [Speaker(rank, pid, generation) for rank, pid in enumerate(pids)]
        self.states = {rank: ProcState(pid, "S") for rank, pid in enumerate(pids)}
        self.tracks = Tracks(generation, pids, now)

    def hear(self, *heard: Heard) -> bool:
        """Take messages in; whether any of them was more than a plain step."""
        changed = [self.tracks.hear(one, self.limits) for one in heard]
        return any(changed)

    def train(self, start: float, steps: int, step_s: float, ranks: Sequence[int] | None = None) -> float:
        """All ranks step together; returns the time of the last step."""
        now = start
        for _ in range(steps):
            now += step_s
            for rank in range(len(self.speakers)) if ranks is None else ranks:
                self.hear(self.speakers[rank].tick(now))
        return now

    def set_state(self, rank: int, **changes: Any) -> None:
        """From now on the kernel says this about a rank."""
        self.states[rank] = self.states[rank]._replace(**changes)

    def assess(self, now: float) -> Assessment:
        """Judge once."""
        alive = {track.local_rank for track in self.tracks.alive}
        states = {rank: state for rank, state in self.states.items() if rank in alive}
        return assess(self.tracks, self.limits, states, now)

    def convict(self, stall: Stall) -> None:
        """The generation ends because of it, as :meth:`.watching.watch.Watch.convict` takes note of it."""
        assert stall.learnt
        track = self.tracks.ranks[stall.local_rank]
        self.limits.distrust(track.beats, track.step)

    def run_until(self, end: float, start: float) -> tuple[float, Assessment]:
        """Judge whenever a deadline comes until there is a stall, or ``end``; returns when and what."""
        now = start
        while True:
            assessment = self.assess(now)
            if assessment.stalls or assessment.next_deadline > end:
                return now, assessment
            assert assessment.next_deadline > now, "a deadline in the past would make the loop spin"
            now = assessment.next_deadline
