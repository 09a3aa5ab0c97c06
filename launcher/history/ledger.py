"""Keeps account of a run while its events come in, from a file or from the running agent.

Total: whatever an event holds, it is used as far as it makes sense and never raises. Memory is bounded for each
generation, however often its progress is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ftlaunch.launcher.history.model import Diagnosed, Failed, Generation, History, Pulse, RankExit, Reading
from ftlaunch.launcher.journal.incident import FailureCause, Incident

_MAX_READINGS = 512
_MAX_GENERATIONS = 100_000
_MAX_RANKS = 100_000
_MAX_DRILLS = 16
_LIMIT = float(1 << 53)
Event = Mapping[str, Any]


class Readings:
    """The progress of one generation; of many readings every second, fourth, … is kept, beside the first two, the
    last one and those that tell of a new checkpoint."""

    def __init__(self) -> None:
        self._head: list[Reading] = []
        self._middle: list[Reading] = []
        self._last: Reading | None = None
        self._saved: Reading | None = None
        self._stride = 1
        self._count = 0

    def add(self, reading: Reading) -> None:
        """Take in the next one."""
        if self._last is not None and reading.checkpoints > self._last.checkpoints:
            self._saved = reading
        self._last = reading
        if len(self._head) < 2:
            self._head.append(reading)
            return
        self._count += 1
        if self._count % self._stride == 0:
            self._middle.append(reading)
        if len(self._middle) > _MAX_READINGS:
            self._middle = self._middle[1::2]
            self._stride *= 2

    def all(self) -> tuple[Reading, ...]:
        """What was kept, in order."""
        extra = (reading for reading in (self._saved, self._last) if reading is not None)
        # By identity: two readings may be equal.
        kept = {id(reading): reading for reading in (*self._head, *self._middle, *extra)}
        return tuple(sorted(kept.values(), key=lambda reading: reading.at))


class Ledger:
    """Feed it events in order, ask it for the :class:`History` so far."""

    def __init__(self) -> None:
        self._generations: dict[int, Generation] = {}
        self._readings: dict[int, Readings] = {}
        self._base = History()
        self._begun = False
        self._now = 0.0
        self._last_failed: int | None = None

    def feed(self, event: Event) -> None:
        """Take in one event. Never raises; about 10 us."""
        at = number(event.get("monotonic"))
        if at is None:
            return
        # One clock, one writer: what goes back is a damaged line, or two runs in one file.
        self._now = max(self._now, at) if self._begun else at
        if not self._begun:
            self._begun = True
            self._base = replace(self._base, started_at=at, started=str(event.get("time") or ""))
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is not None:
            handler(self, event, self._now)

    def history(self, now: float | None = None) -> History:
        """The run so far. ``now`` extends one that goes on up to this moment."""
        end = self._now if self._base.finished or now is None else max(now, self._now)
        generations = tuple(
            replace(item, readings=self._readings[index].all()) if index in self._readings else item
            for index, item in sorted(self._generations.items())
        )
        return replace(self._base, generations=generations, incidents=_incidents(generations), ended_at=end)

    # -- one method for each event that matters ------------------------------------------------------------------

    def agreed(self, event: Event, at: float) -> None:
        """``rendezvous_completed``"""
        self._change(
            event,
            agreed_at=at,
            nodes=whole(event.get("nodes")) or 1,
            world_size=whole(event.get("world_size")),
            group_rank=whole(event.get("group_rank")),
            resume_step=whole(event.get("resume_step")),
            resume_from=str(event.get("resume_from") or ""),
        )

    def workers_started(self, event: Event, at: float) -> None:
        """``workers_started``"""
        pids = event.get("pids")
        slots = min(len(pids), _MAX_RANKS) if isinstance(pids, list) else 0
        self._change(event, started_at=at, slots=slots, warm=min(slots, whole(event.get("warm")) or 0))

    def resumed(self, event: Event, at: float) -> None:
        """``training_resumed``"""
        self._change(event, resumed_at=at)

    def progress(self, event: Event, at: float) -> None:
        """``progress``"""
        generation = self._generation(event)
        if generation is None:
            return
        reading = Reading(
            at=at,
            step=whole(event.get("step")),
            ticks=whole(event.get("ticks")) or 0,
            checkpoints=whole(event.get("checkpoints")) or 0,
            checkpoint_step=whole(event.get("checkpoint_step")),
            beating_since=number(event.get("beating_since")),
            last_beat=number(event.get("last_beat")),
        )
        self._readings.setdefault(generation.number, Readings()).add(reading)

    def saved(self, event: Event, at: float) -> None:
        """``checkpoint_saved``"""
        self._change(event, saved_at=at, saved_step=whole(event.get("step")))

    def failure(self, event: Event, at: float) -> None:
        """``failure_detected``"""
        self._change(event, failed=_failed(event, at), **_offset(event))

    def corrected(self, event: Event, at: float) -> None:
        """``cause_corrected``: another rank was the first to fail. When that was seen and what followed stay."""
        generation = self._generation(event)
        before = generation.failed if generation is not None else None
        if before is not None:
            failed = _failed(event, before.detected_at)
            failed = replace(failed, decision=before.decision, decision_reason=before.decision_reason)
            self._change(event, failed=failed, **_offset(event))

    def decided(self, event: Event, at: float) -> None:
        """``decided``"""
        generation = self._generation(event)
        if generation is not None and generation.failed is not None:
            decision, reason = str(event.get("decision") or ""), str(event.get("reason") or "")
            self._change(event, failed=replace(generation.failed, decision=decision, decision_reason=reason))

    def diagnosed(self, event: Event, at: float) -> None:
        """``diagnosed``"""
        kind, sentence, confidence, hint = (
            str(event.get(key) or "") for key in ("kind", "reason", "confidence", "hint")
        )
        self._change(event, diagnosed=Diagnosed(kind, sentence, confidence, hint, whole(event.get("rank"))))

    def exited(self, event: Event, at: float) -> None:
        """``worker_exited``"""
        generation, rank = self._generation(event), whole(event.get("rank"))
        if generation is None or rank is None or len(generation.exits) >= _MAX_RANKS:
            return
        code, died = event.get("exit_code"), number(event.get("at"))
        end = RankExit(rank, at if died is None or died > at else died, code if type(code) is int else None)
        self._change(event, exits=(*generation.exits, end), **_offset(event))

    def drilled(self, event: Event, at: float) -> None:
        """``fault_injected``"""
        generation = self._generation(event)
        if generation is None or len(generation.drills) >= _MAX_DRILLS:
            return
        step = whole(event.get("step"))
        told = f"{event.get('kind') or 'fault'!s:.40}" + ("" if step is None else f" at step {step}")
        self._change(event, drills=(*generation.drills, told))

    def undrilled(self, event: Event, at: float) -> None:
        """``fault_failed``: what was told a moment before could not be carried out."""
        generation = self._generation(event)
        if generation is not None:
            self._change(event, drills=generation.drills[:-1])

    def stopped(self, event: Event, at: float) -> None:
        """``workers_stopped``"""
        self._change(event, stopped_at=at)

    def reclaimed(self, event: Event, at: float) -> None:
        """``gpu_reclaimed``"""
        self._change(event, reclaimed_at=at)

    def finished(self, event: Event, at: float) -> None:
        """``job_finished``"""
        code = event.get("exit_code")
        self._base = replace(
            self._base,
            finished=True,
            exit_code=code if type(code) is int else None,
            reason=str(event.get("reason") or ""),
        )

    def _generation(self, event: Event) -> Generation | None:
        index = whole(event.get("generation"))
        if index is None or (index not in self._generations and len(self._generations) >= _MAX_GENERATIONS):
            return None
        return self._generations.setdefault(index, Generation(index))

    def _change(self, event: Event, **fields: Any) -> None:
        generation = self._generation(event)
        if generation is not None:
            self._generations[generation.number] = replace(generation, **fields)


_HANDLERS: Mapping[str, Callable[[Ledger, Event, float], None]] = {
    "rendezvous_completed": Ledger.agreed,
    "workers_started": Ledger.workers_started,
    "training_resumed": Ledger.resumed,
    "progress": Ledger.progress,
    "checkpoint_saved": Ledger.saved,
    "failure_detected": Ledger.failure,
    "cause_corrected": Ledger.corrected,
    "decided": Ledger.decided,
    "diagnosed": Ledger.diagnosed,
    "worker_exited": Ledger.exited,
    "fault_injected": Ledger.drilled,
    "fault_failed": Ledger.undrilled,
    "workers_stopped": Ledger.stopped,
    "gpu_reclaimed": Ledger.reclaimed,
    "job_finished": Ledger.finished,
}


def up_to_now(history: History, pulses: Sequence[Pulse], now: float) -> History:
    """Add what is heard at the moment to a run that goes on, as one more reading of its last generation."""
    ages = [pulse.beat_age_s for pulse in pulses if pulse.beat_age_s is not None]
    if not ages or history.finished or not history.generations:
        return history
    current = history.generations[-1]
    if current.failed is not None or current.first_beat is None:
        return history
    before = current.readings[-1] if current.readings else Reading(now)
    steps = [pulse.step for pulse in pulses if pulse.step is not None]
    reading = replace(
        before,
        at=now,
        step=max(steps, default=before.step),
        ticks=max(before.ticks, *(pulse.ticks for pulse in pulses)),
        last_beat=now - min(ages),
    )
    current = replace(current, readings=(*current.readings, reading))
    return replace(history, generations=(*history.generations[:-1], current))


def number(value: Any) -> float | None:
    """A finite number of seconds, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: an integer of JSON may be larger than any float. NaN is never smaller.
    return float(value) if abs(value) < _LIMIT else None


def whole(value: Any) -> int | None:
    """A count, or ``None``."""
    return value if type(value) is int and 0 <= value < _LIMIT else None


def _failed(event: Event, detected_at: float) -> Failed:
    happened = number(event.get("at"))
    return Failed(
        kind=str(event.get("kind") or "unknown"),
        reason=str(event.get("reason") or ""),
        at=detected_at if happened is None else min(happened, detected_at),
        detected_at=detected_at,
        rank=whole(event.get("rank")),
        local_rank=whole(event.get("local_rank")),
        step=whole(event.get("step")),
    )


def _offset(event: Event) -> dict[str, int]:
    rank, local_rank = whole(event.get("rank")), whole(event.get("local_rank"))
    return {} if rank is None or local_rank is None or local_rank > rank else {"rank_offset": rank - local_rank}


def _incidents(generations: tuple[Generation, ...]) -> dict[int, Incident]:
    return {item.number: _incident(item.number, item.failed) for item in generations if item.failed is not None}


def _incident(generation: int, failed: Failed) -> Incident:
    cause = FailureCause(failed.kind, failed.reason, failed.rank, failed.local_rank, at=failed.at, step=failed.step)
    return Incident(generation, cause, failed.decision, failed.decision_reason)
