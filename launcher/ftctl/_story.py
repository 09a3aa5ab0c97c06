"""A run told in order: each generation, what ended it, what followed. Pure; values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.heartbeat.watching.verdicts import rank_ranges
from ftlaunch.launcher.history.goodput import Account, Loss, Use
from ftlaunch.launcher.history.hints import hints
from ftlaunch.launcher.history.model import Generation, History
from ftlaunch.launcher.history.summary import summary_line
from ftlaunch.launcher.journal.failure_report import clean, describe_code
from ftlaunch.launcher.journal.incident import FailureCause, RankEnd
from ftlaunch.launcher.wording import counted, seconds, shortened

_WIDTH = 400
_BLOCK_LINES = 12
_OTHERS = 4
_PHASES = {
    Use.DETECTED: "noticed",
    Use.STOPPED: "stopped",
    Use.RECLAIMED: "GPUs free",
    Use.AGREED: "world agreed",
    Use.STARTED: "started",
    Use.RESUMED: "first beat",
}


@dataclass(frozen=True)
class Chapter:
    """One generation, and what it cost that it failed."""

    generation: Generation
    loss: Loss | None
    hints: Sequence[str] = ()


def chapters(history: History, account: Account, stderr: Mapping[int, str]) -> list[Chapter]:
    """All generations in order. ``stderr``: last lines of the first failed rank, by generation."""
    losses = {loss.incident.generation: loss for loss in account.losses}
    found = []
    for index, generation in enumerate(history.generations):
        loss = losses.get(generation.number)
        following = history.generations[index + 1] if index + 1 < len(history.generations) else None
        helped = hints(loss, following, stderr.get(generation.number, "")) if loss is not None else []
        found.append(Chapter(generation, loss, helped))
    return found


def tell(
    history: History, account: Account, told: Sequence[Chapter], running: bool, full: bool = False
) -> Iterator[str]:
    """The whole story. ``full``: evidence and tracebacks as long as they are."""
    yield f"run {history.run_id}: {shortened(' '.join(history.command), _WIDTH)}"
    yield f"started {history.started[:19].replace('T', ' ')} UTC on {clean(history.host) or 'this host'}"
    for chapter in told:
        yield ""
        yield from _tell_chapter(chapter, history, full)
    yield ""
    yield _end(history, running)
    yield summary_line(history, account)


def _tell_chapter(chapter: Chapter, history: History, full: bool) -> Iterator[str]:
    generation, loss = chapter.generation, chapter.loss
    yield f"generation {generation.number}: {_start(generation, history)}"
    if generation.resume_from:
        step = f" (step {generation.resume_step})" if generation.resume_step is not None else ""
        yield f"  resumed from {clean(generation.resume_from)}{step}"
    if loss is None:
        return
    cause = loss.incident.cause
    # Without a rank the reason is a sentence of its own.
    who = f"rank {cause.rank}" + (f" (pid {cause.pid}) " if cause.pid else " ") if cause.rank is not None else ""
    step = f", at step {cause.step}" if cause.step is not None else ""
    yield f"  after {seconds(loss.at_s)}: {who}{_what(cause)}{step}"
    found = loss.incident.diagnosis
    if found is not None and found.kind not in ("exception", "exit", "stall"):
        yield f"    {shortened(found.sentence, _WIDTH)} ({found.confidence})"
    for block in (*cause.evidence, *((cause.traceback,) if full else ())):
        yield from _block(block, full)
    yield from _ends(loss.incident.consequences, cause.rank, cause.at)
    yield f"  decided to {loss.incident.decision or 'end'}: {shortened(loss.incident.decision_reason, _WIDTH)}"
    if loss.phases_s:
        yield f"  recovery: {phases(loss)}"
    for hint in chapter.hints:
        yield f"  hint: {shortened(hint, _WIDTH)}"


def _what(cause: FailureCause) -> str:
    if not cause.exception:
        return shortened(cause.reason, _WIDTH)
    place = f" at {clean(cause.place)}" if cause.place else ""
    return f"failed with {clean(cause.exception)}: {shortened(cause.message, _WIDTH)}{place}"


def _start(generation: Generation, history: History) -> str:
    if generation.started_at is None:
        return "was agreed on, its ranks were never started"
    ranks = counted(generation.slots, "rank")
    warm = f", {generation.warm} from standbys" if generation.warm else ""
    text = f"{ranks} started after {seconds(generation.started_at - history.started_at)}{warm}"
    first = generation.first_beat
    if first is None:
        return f"{text}; no beat was heard"
    return f"{text}; first beat {seconds(max(0.0, first - generation.started_at))} later{_reached(generation)}"


def _reached(generation: Generation) -> str:
    last = generation.readings[-1] if generation.readings else None
    if last is None:
        return ""
    if last.step is not None:
        return f", came to step {last.step}"
    return f", made {counted(last.ticks, 'optimizer step')}" if last.ticks else ""


def phases(loss: Loss) -> str:
    """``noticed 0.5 ms, stopped 94 ms, …; 0.87 s in all``"""
    parts = [f"{_PHASES.get(use, use.value)} {seconds(spent)}" for use, spent in loss.phases_s.items()]
    if loss.recovery_s is None:
        return ", ".join(parts)
    return f"{', '.join(parts)}; {seconds(loss.recovery_s)} in all"


def _block(text: str, full: bool) -> Iterator[str]:
    lines = text.strip("\n").splitlines()
    shown = lines if full else lines[:_BLOCK_LINES]
    yield from (f"    {clean(line)[:_WIDTH]}" for line in shown)
    if len(lines) > len(shown):
        yield f"    … {len(lines) - len(shown)} more lines: --full"


def _ends(ends: Sequence[RankEnd], first: int | None, at: float | None) -> Iterator[str]:
    own = [end for end in ends if not end.stopped_by_launcher and end.exit_code not in (0, None) and end.rank != first]
    for end in own[:_OTHERS]:
        later = f", {seconds(max(0.0, end.at - at))} later" if end.at is not None and at is not None else ""
        yield f"    then rank {end.rank}: {describe_code(end.exit_code)}{later}"
    if len(own) > _OTHERS:
        rest = shortened(rank_ranges(end.rank for end in own[_OTHERS:]), 80)
        yield f"    then {len(own) - _OTHERS} more: ranks {rest}"
    stopped = [end.rank for end in ends if end.stopped_by_launcher]
    if stopped:
        yield f"    stopped by ftlaunch: rank{'s' * (len(stopped) > 1)} {shortened(rank_ranges(stopped), 80)}"


def _end(history: History, running: bool) -> str:
    if history.finished:
        return f"the job ended after {seconds(history.wall_s)} with code {history.exit_code}: {clean(history.reason)}"
    if running:
        return f"it is running, for {seconds(history.wall_s)} by its last event"
    return f"its agent vanished {seconds(history.wall_s)} after the start, or later: no end was recorded"


def as_json(history: History, told: Sequence[Chapter]) -> dict[str, Any]:
    """The same for programs: seconds, and one entry per incident."""
    return {
        "run": history.run_id,
        "finished": history.finished,
        "exit_code": history.exit_code,
        "reason": history.reason,
        "wall_s": round(history.wall_s, 6),
        "generations": len(history.generations),
        "incidents": [
            {
                "generation": chapter.generation.number,
                "rank": chapter.loss.incident.cause.rank,
                "kind": chapter.loss.incident.cause.kind,
                "reason": chapter.loss.incident.cause.reason,
                "evidence": list(chapter.loss.incident.cause.evidence),
                "decision": chapter.loss.incident.decision,
                "decision_reason": chapter.loss.incident.decision_reason,
                "phases_s": {use.value: round(spent, 6) for use, spent in chapter.loss.phases_s.items()},
                "recovery_s": chapter.loss.recovery_s,
                "repeated_steps": chapter.loss.repeated_steps,
                "hints": list(chapter.hints),
            }
            for chapter in told
            if chapter.loss is not None
        ],
    }
