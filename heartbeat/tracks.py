"""What is known of each rank of the generation, from its messages. No clock, no process: ``now`` is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ftlaunch.heartbeat.limits import STEP, WARM_UP, Limits
from ftlaunch.heartbeat.wire import Kind, Message

_MAX_SECTIONS = 32
_RATE_WINDOW = 20


@dataclass
class Track:
    """One rank of one generation. Times are the agent's clock, except ``sent_s``, the worker's own."""

    local_rank: int
    pid: int
    started_at: float
    phase: str = "started"
    """``started``, ``start``, ``script``, ``import`` (torch.optim is there), ``training``."""
    beaten: bool = False
    watched: bool = False
    """Something has shown that beats are to be expected: a hook is armed, a section was opened, it has beaten."""
    step: int | None = None
    ticks: int = 0
    checkpoints: int = 0
    checkpoint_step: int | None = None
    checkpoint_path: str = ""
    sections: list[tuple[str, float]] = field(default_factory=list)
    sections_known: bool = True
    last_progress: float = 0.0
    first_progress: float | None = None
    info: dict[str, Any] = field(default_factory=dict)
    last_words: bool = False
    step_times: list[float] = field(default_factory=list)
    _serial: int = 0
    _sequence: int = -1
    _speaker: int = 0
    _sent_s: float | None = None
    _opened_s: list[float] = field(default_factory=list)
    _gaps: int = 0
    _interrupted: bool = False

    def take(self, message: Message, pid: int, now: float, limits: Limits) -> None:
        """Take one message in. Older ones than the last of the same process tell nothing new about progress."""
        if pid != self._speaker:
            self._speaker, self._sequence, self._sent_s, self._serial = pid, -1, None, message.section_serial
        late = message.sequence <= self._sequence
        self._sequence = max(message.sequence, self._sequence)
        if message.kind is Kind.SECTION or "sections" in message.payload:
            if not late:
                self._take_sections(message, now, limits)
        elif message.section_serial != self._serial and not late:
            # A section message was lost: until the stack is told again nobody knows what the rank is doing.
            self.sections_known = False
        if message.kind in (Kind.BEAT, Kind.TICK):
            self._take_progress(message, now, limits)
        elif message.kind is Kind.HELLO:
            self._take_hello(message)
        elif message.kind is Kind.CHECKPOINT:
            self._take_checkpoint(message)
        elif message.kind is Kind.LAST_WORDS:
            self.last_words = True

    def shift(self, gap_s: float) -> None:
        """The agent was paused for so long: nobody's silence during that time counts."""
        self.started_at += gap_s
        self.last_progress += gap_s
        self.sections = [(name, since + gap_s) for name, since in self.sections]

    @property
    def alive_since(self) -> float:
        """When the silence began."""
        return self.last_progress if self.beaten else self.started_at

    @property
    def rate(self) -> float | None:
        """Steps per second over the last ones."""
        total = sum(self.step_times)
        return len(self.step_times) / total if total > 0 else None

    def _take_hello(self, message: Message) -> None:
        phase = str(message.payload.get("phase", ""))[:32]
        if not self.beaten and phase:
            self.phase = phase
        if phase == "import":
            self.watched = True

    def _take_progress(self, message: Message, now: float, limits: Limits) -> None:
        sent_s = message.sent_ns / 1e9
        if self._sent_s is not None and sent_s > self._sent_s and not self._interrupted:
            gap = sent_s - self._sent_s
            self._gaps += 1
            if self._gaps > WARM_UP:
                limits.learn(STEP, gap)
                self.step_times = [*self.step_times[-_RATE_WINDOW + 1 :], gap]
        self._sent_s = sent_s
        self._interrupted = bool(self.sections)
        if message.kind is Kind.TICK:
            self.ticks = max(self.ticks, message.step or 0)
        elif message.step is not None:
            self.step = message.step if self.step is None else max(self.step, message.step)
        info = message.payload.get("info")
        if isinstance(info, dict):
            self.info = info
        self.beaten = self.watched = True
        self.phase = "training"
        self.last_progress = max(now, self.last_progress)
        if self.first_progress is None:
            self.first_progress = now

    def _take_sections(self, message: Message, now: float, limits: Limits) -> None:
        names = message.payload.get("sections")
        if not isinstance(names, list):
            return
        names = [str(name)[:64] for name in names[:_MAX_SECTIONS]]
        sent_s = message.sent_ns / 1e9
        common = 0
        while common < min(len(names), len(self.sections)) and names[common] == self.sections[common][0]:
            common += 1
        for (name, _), opened_s in zip(self.sections[common:], self._opened_s[common:], strict=False):
            limits.learn(name, sent_s - opened_s)
        self.sections = self.sections[:common] + [(name, now) for name in names[common:]]
        self._opened_s = self._opened_s[:common] + [sent_s] * (len(names) - common)
        self._serial = message.section_serial
        self.sections_known = True
        self._interrupted = self.watched = True
        # Opening or closing a section is a sign of life as good as a step.
        self.last_progress = max(now, self.last_progress)

    def _take_checkpoint(self, message: Message) -> None:
        self.checkpoints += 1
        step = message.payload.get("step")
        if isinstance(step, int) and not isinstance(step, bool):
            self.checkpoint_step = step if self.checkpoint_step is None else max(step, self.checkpoint_step)
        self.checkpoint_path = str(message.payload.get("path", ""))
