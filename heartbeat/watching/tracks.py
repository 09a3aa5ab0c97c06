"""What the agent knows about each rank of one generation from its messages. No clock is read, nothing is decided here.

Two clocks, never mixed up. Silences are counted on the agent's own, from when a message was *received*: whatever kept
the agent from hearing makes a silence shorter, never longer. Gaps to learn from are differences of the *sender's*
stamps, and only where no message in between was lost, so the agent's pauses are not in them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftlaunch.heartbeat.watching.limits import STEP, WARM_UP, Limits
from ftlaunch.heartbeat.watching.listener import Heard
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.heartbeat.wire import Kind, Message

_LATE_S = 1.0
"""A message that is this much later than its sender's others was kept waiting by us."""
_SERIES = 64
_SERIALS = 1 << 32
_MAX_SECTIONS = 32
_MAX_NAME = 64


class Phase(enum.IntEnum):
    """How far the start-up of a rank is, as far as it told. Each is entered by a message and never left backwards."""

    SPAWNED = 0
    """Nothing heard: the interpreter is starting, or this is a program that never speaks."""
    STARTED = 1
    """Our bootstrap runs."""
    SCRIPT = 2
    """The user's program begins."""
    IMPORTED = 3
    """torch.optim is loaded. No promise: evaluation and inference load it too."""
    TRAINING = 4
    """The program has made an optimizer, so it means to make steps."""
    STEPPING = 5
    """At least one step or beat."""


_PHASES = {
    "start": Phase.STARTED,
    "script": Phase.SCRIPT,
    "import": Phase.IMPORTED,
    "optimizer": Phase.TRAINING,
    "init": Phase.TRAINING,
}


class OpenSection:
    """One section that a rank is in."""

    def __init__(self, name: str, entered_at: float, entered_ns: int) -> None:
        self.name = name
        self.entered_at = entered_at
        self.entered_ns = entered_ns


class Look(NamedTuple):
    """What the kernel said at some moment."""

    at: float
    state: ProcState


class Track:
    """One rank of one generation. Times are CLOCK_MONOTONIC seconds of the agent, ``*_ns`` those of the worker."""

    def __init__(self, local_rank: int, pid: int, now: float) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.voice = pid
        """The process that speaks for the rank: itself, or one below a program that is not Python."""
        self.voice_ended = False
        """The program below has ended, and what the rank does now nobody tells."""
        self.phase = Phase.SPAWNED
        self.exit_code: int | None = None
        self.exited_at = 0.0
        self.beats = 0
        """Messages about steps, of the process that speaks. It tells ten a second at most, so steps may be more."""
        self.beaten = False
        self.step: int | None = None
        """The script's own number of its last beat."""
        self.ticks = 0
        self.beat_at = 0.0
        self.beat_ns = 0
        self.sign_at = now
        """Last sign of its start-up, or change of sections."""
        self.sign_ns = 0
        self.sections: list[OpenSection] | None = []
        """Outermost first; ``None``: a message was lost, and which they are is not known."""
        self.info: Mapping[str, Any] = {}
        self.series: deque[tuple[int, int]] = deque(maxlen=_SERIES)
        """The last steps: number, and sender's time in ns."""
        self.tainted_at = now
        """Nothing is learnt from silences that began before: something from outside is in them."""
        self.warned: dict[str, int] = {}
        self.quiet_look: Look | None = None
        """What it did half-way through the present silence."""
        self.same_look: Look | None = None
        """Since when the kernel has told the same ominous state."""
        self.said: set[str] = set()
        self._sequence = 0
        self._serial = 0
        self._lag_s: float | None = None

    @property
    def alive(self) -> bool:
        """Its process has not ended."""
        return self.exit_code is None

    @property
    def progress_at(self) -> float:
        """When it last showed any progress: a step, a change of sections, or a phase of its start-up."""
        return self.beat_at if self.beat_at > self.sign_at else self.sign_at

    @property
    def steps(self) -> int:
        """How far it is, for people: the script's own number, else optimizer steps, else beats."""
        return self.step if self.step is not None else self.ticks or self.beats

    @property
    def section(self) -> str:
        """The innermost open section; ``step`` when there is none, ``""`` when it is not known."""
        if self.sections is None:
            return ""
        return self.sections[-1].name if self.sections else STEP

    def is_in(self, name: str) -> bool:
        """Whether such a section is open. Not known counts as yes."""
        return self.sections is None or any(section.name == name for section in self.sections)

    def broke_silence(self) -> None:
        """Forget what was noted about the silence that has ended."""
        self.warned.clear()
        self.quiet_look = None
        self.said.discard("works")

    def shift(self, gap_s: float, now: float) -> None:
        """Leave ``gap_s`` out of every silence."""
        self.beat_at = min(now, self.beat_at + gap_s) if self.beats else 0.0
        self.sign_at = min(now, self.sign_at + gap_s)
        for section in self.sections or ():
            section.entered_at = min(now, section.entered_at + gap_s)

    # -- messages -----------------------------------------------------------------------------------------------

    def take(self, heard: Heard, limits: Limits, undisturbed: bool) -> bool:
        """Take in one message; True when more changed than a step. ``undisturbed``: others are in no section."""
        message = heard.message
        if heard.pid != self.voice or not self._sequence:
            self._begin(heard.pid)
        lost = message.sequence != self._sequence + 1
        in_order = message.sequence > self._sequence
        if in_order:
            self._sequence = message.sequence
        changed = self._take_sections(message, heard.received_at, limits, lost)
        kind = message.kind
        if kind is Kind.TICK or kind is Kind.BEAT:
            if in_order or message.sent_ns > self.beat_ns:
                return self._step(message, heard.received_at, limits, undisturbed and not lost) or changed
        elif kind is Kind.HELLO:
            self._hello(message, heard.received_at)
        return True

    def lateness(self, heard: Heard) -> float:
        """How much later than usual for this sender the message was received: the agent's own pause, or load."""
        lag_s = heard.received_at - heard.message.sent_ns / 1e9
        usual_s = self._lag_s
        # Its clock may have an offset (time_namespaces(7)), and may jump once (a process that was restored).
        if usual_s is None or lag_s < usual_s or lag_s - usual_s > _LATE_S:
            self._lag_s = lag_s
        return lag_s - usual_s if usual_s is not None and lag_s - usual_s > _LATE_S else 0.0

    def _begin(self, pid: int) -> None:
        """A process speaks for the first time."""
        if pid != self.voice:
            # Its first steps are first steps again.
            self.sections, self.beats, self.beat_ns, self._lag_s = [], 0, 0, None
            self.series.clear()
        self.voice, self.voice_ended = pid, False
        self._sequence = self._serial = 0

    def _hello(self, message: Message, now: float) -> None:
        self.phase = max(self.phase, _PHASES.get(str(message.payload.get("phase")), Phase.SPAWNED))
        self._sign(message.sent_ns, now)

    def _sign(self, sent_ns: int, now: float) -> None:
        self.sign_at = now
        self.sign_ns = max(self.sign_ns, sent_ns)
        self.broke_silence()

    def _step(self, message: Message, now: float, limits: Limits, learnable: bool) -> bool:
        """Note a step; True for the first."""
        sent_ns = message.sent_ns
        first = self.beats == 0
        if learnable and not first:
            self._learn(sent_ns, limits)
        elif first and self.sections == [] and self.sign_ns:
            limits.learn_start(_seconds(sent_ns, self.sign_ns))
        self.beats += 1
        self.beaten = True
        self.beat_at, self.beat_ns = now, sent_ns
        if message.kind is Kind.TICK:
            self.ticks = max(self.ticks, message.step or 0)
        elif message.step is not None:
            self.step = message.step
        self.series.append((self.beats if message.step is None else message.step, sent_ns))
        if message.payload:
            info = message.payload.get("info")
            if isinstance(info, dict):
                self.info = info
        if self.warned or self.quiet_look is not None:
            self.broke_silence()
        if first:
            self.phase = Phase.STEPPING
            limits.trained.add(self.local_rank)
        return first

    def _learn(self, sent_ns: int, limits: Limits) -> None:
        warm = self.beats <= WARM_UP
        if self.sections:
            for section in self.sections:
                if max(self.beat_at, section.entered_at) >= self.tainted_at:
                    limits.learn(section.name, _seconds(sent_ns, self.beat_ns, section.entered_ns), warm=warm)
        elif self.sections is not None and self.beat_ns and self.progress_at >= self.tainted_at:
            limits.learn(STEP, _seconds(sent_ns, self.beat_ns, self.sign_ns), warm=warm)

    # -- sections -----------------------------------------------------------------------------------------------

    def _take_sections(self, message: Message, now: float, limits: Limits, lost: bool) -> bool:
        newer = (message.section_serial - self._serial) % _SERIALS
        if newer >= _SERIALS // 2:
            return False  # Overtaken by a later one.
        told = _names(message.payload.get("sections")) if message.payload else None
        if told is None:
            if newer:
                self._serial, self.sections = message.section_serial, None
                self._sign(message.sent_ns, now)
            return newer > 0
        if not newer and self.sections is not None:
            return False
        self._serial = message.section_serial
        old, kept = self.sections or [], 0
        if newer == 1:
            # After a lost message an equal name may be another visit: it gets its time anew.
            while kept < min(len(old), len(told)) and old[kept].name == told[kept]:
                kept += 1
            if not lost:
                self._learn_change(old, kept, message.sent_ns, limits)
        self.sections = old[:kept] + [OpenSection(name, now, message.sent_ns) for name in told[kept:]]
        self._sign(message.sent_ns, now)
        return True

    def _learn_change(self, old: Sequence[OpenSection], kept: int, sent_ns: int, limits: Limits) -> None:
        for section in old[kept:]:
            if max(self.beat_at, section.entered_at) >= self.tainted_at:
                limits.learn(section.name, _seconds(sent_ns, self.beat_ns, section.entered_ns), visit=True)
        if self.sections == [] and self.beat_ns and self.progress_at >= self.tainted_at:
            limits.learn_part(STEP, _seconds(sent_ns, self.beat_ns, self.sign_ns), warm=self.beats <= WARM_UP)


def _seconds(sent_ns: int, *since_ns: int) -> float:
    """From the latest of ``since_ns`` to ``sent_ns``; never negative."""
    return max(0, sent_ns - max(since_ns)) / 1e9


def _names(told: object) -> list[str] | None:
    if not isinstance(told, list) or len(told) > _MAX_SECTIONS:
        return None
    return [str(name)[:_MAX_NAME] for name in told]


class Tracks:
    """All ranks of this node in one generation."""

    def __init__(self, generation: int = -1, pids: Sequence[int] = (), now: float = 0.0, first_rank: int = 0) -> None:
        self.generation = generation
        self.first_rank = first_rank
        self.ranks = [Track(local_rank, pid, now) for local_rank, pid in enumerate(pids)]
        self.checkpoints = 0
        self.checkpoint_step: int | None = None
        self.left_at: float | None = None
        """When the first rank ended with 0."""
        self.fresh_at = now
        """Silences before this moment do not count, for anybody."""
        self.worked_at = now
        """When a silent rank was last found working."""
        self.elsewhere_at = 0.0
        """When a rank of another node was last in a section."""
        self.patient_until = 0.0
        """No silence is judged before: an agent of another node is about to act."""
        self.blamed_at = float("-inf")
        """When all nodes told that nothing excuses a silence."""
        self.held = False
        """On the last look some rank was traced."""
        self._accounted_until = now
        self._busy_at = -1.0
        self._busy = [-1.0] * len(pids)

    @property
    def alive(self) -> list[Track]:
        """Ranks whose process has not ended."""
        return [track for track in self.ranks if track.alive]

    def hear(self, heard: Heard, limits: Limits) -> bool:
        """Take in a message of this generation. False for a plain step: limits and deadlines only got later.

        About 3 µs. Messages of other generations or ranks are ignored.
        """
        message = heard.message
        if message.generation != self.generation or message.local_rank >= len(self.ranks):
            return False
        track = self.ranks[message.local_rank]
        late_s = track.lateness(heard)
        if late_s:
            self.paused(heard.received_at, late_s)
        version = limits.version
        changed = track.take(heard, limits, self._busy_at < track.beat_at or self.undisturbed(track, track.beat_at))
        if message.kind is Kind.CHECKPOINT:
            self._checkpoint(message)
        if changed and (track.sections or message.section_serial):
            self._busy_at = self._busy[track.local_rank] = heard.received_at
        return changed or limits.version != version

    def undisturbed(self, track: Track, since: float) -> bool:
        """Whether no other rank has been in a section since: a rank may wait for those that are."""
        return all(
            other is track or (not other.sections and self._busy[other.local_rank] < since) for other in self.ranks
        )

    def exited(self, local_rank: int, exit_code: int, now: float) -> None:
        """A rank's process has ended. Whatever section it was in is over."""
        track = self.ranks[local_rank]
        if track.sections != []:
            self._busy_at = self._busy[local_rank] = now
        track.exit_code, track.exited_at, track.sections = exit_code, now, []
        if exit_code == 0 and self.left_at is None:
            self.left_at = now

    def paused(self, now: float, gap_s: float) -> None:
        """The agent could not hear for the last ``gap_s`` seconds: leave them out of every silence, once."""
        lost_s = min(gap_s, now - self._accounted_until)
        self._accounted_until = max(now, self._accounted_until)
        if lost_s > 0:
            for track in self.ranks:
                track.shift(lost_s, now)
            self.fresh_at = min(now, self.fresh_at + lost_s)
            self.elsewhere_at = min(now, self.elsewhere_at + lost_s)
            if self.left_at is not None:
                self.left_at = min(now, self.left_at + lost_s)

    def restart_timers(self, now: float) -> None:
        """Every silence begins anew, and the gap that it is part of teaches nothing."""
        self.fresh_at = now
        for track in self.alive:
            track.tainted_at = now

    def others_in_section(self, track: Track) -> bool:
        """Whether another living rank is inside a section, or may be."""
        return any(other.alive and other is not track and other.sections != [] for other in self.ranks)

    @property
    def changed_at(self) -> float:
        """When any rank last opened or closed a section; negative if never."""
        return max(self._busy, default=-1.0)

    def last_section_change(self, track: Track) -> float:
        """When another rank last opened or closed a section; negative if never."""
        return max((at for rank, at in enumerate(self._busy) if rank != track.local_rank), default=-1.0)

    def progress(self) -> Progress:
        """For the restart policy."""
        return Progress(
            beaten=any(track.beaten for track in self.ranks),
            step=max((track.step for track in self.ranks if track.step is not None), default=None),
            ticks=max((track.ticks for track in self.ranks), default=0),
            checkpoints=self.checkpoints,
            checkpoint_step=self.checkpoint_step,
        )

    def _checkpoint(self, message: Message) -> None:
        self.checkpoints += 1
        step = message.payload.get("step")
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            self.checkpoint_step = max(step, self.checkpoint_step or 0)
