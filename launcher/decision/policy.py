"""The restart policy: whether a failed generation is followed by another one. Pure: no clock, no file, no log.

:func:`judge` asks the rules of :data:`RULES` in order; the first that has an answer decides. Every answer says in one
sentence why, with the numbers. What a rule needs to know of earlier generations is derived from the history alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftlaunch.launcher.config import RestartConfig
from ftlaunch.launcher.decision.generations import (
    MAX_PORT_RETRIES,
    NEUTRAL_KINDS,
    GenerationRecord,
    Judged,
    exception_name,
    is_passing,
    plural,
    replay,
    run_length,
)
from ftlaunch.launcher.exit_codes import ExitCode, from_wait_status, signal_name

__all__ = ["RULES", "GenerationRecord", "Verdict", "backoff_s", "judge"]

DEFAULT = RestartConfig()
BACKOFF_FIRST_S = 1.0
BACKOFF_MOST_S = 60.0
STALL_EXIT_CODE = 128 + 9
"""A stalled rank ends by our SIGKILL; the job's code says so."""

CANNOT_START = frozenset({"SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError"})
"""No restart heals these. A script that is missing is told as ``FileNotFoundError`` without a place in any file."""


@dataclass(frozen=True)
class Verdict:
    """What follows. ``exit_code`` ``None`` with ``restart`` false: the first failed worker's own."""

    restart: bool
    reason: str
    exit_code: int | None = None
    delay_s: float = 0.0
    counts: bool = True
    """Whether the restart counts against the budget (and in TORCHELASTIC_RESTART_COUNT)."""


@dataclass(frozen=True)
class Case:
    """All that a rule may look at."""

    judged: tuple[Judged, ...]
    config: RestartConfig
    now: float
    jitter: float

    @property
    def last(self) -> Judged:
        """The generation that just ended."""
        return self.judged[-1]

    @property
    def record(self) -> GenerationRecord:
        """Its record."""
        return self.last.record

    @property
    def code(self) -> int | None:
        """The first failed worker's code as a shell shows it."""
        if self.record.kind == "stall":
            return STALL_EXIT_CODE
        return None if self.record.exit_code is None else from_wait_status(self.record.exit_code)

    @property
    def used(self) -> int:
        """Restarts that counted so far."""
        return sum(one.counts for one in self.judged[:-1])

    @property
    def idle(self) -> int:
        """Generations in a row without progress, up to this one; those that other nodes ended are left out."""
        ours = [one for one in self.judged if one.progress or not (one.neutral or one.record.kind == "peer")]
        return run_length(ours, lambda one: not one.progress)

    @property
    def forgiven(self) -> bool:
        """The user said that this exit code is worth another try."""
        return self.code is not None and self.code in self.config.retry_exit_codes

    @property
    def first_try(self) -> bool:
        """No generation before it was ever at work."""
        return all(one.neutral and not one.lived for one in self.judged[:-1])


Rule = Callable[[Case], "Verdict | None"]


def judge(
    history: Sequence[GenerationRecord], now: float, config: RestartConfig = DEFAULT, jitter: float = 0.0
) -> Verdict:
    """Decide what follows the last generation of ``history``; ``now`` is the clock of ``ended_at``.

    ``jitter`` from 0 to 1 lengthens a back-off by up to a quarter. Raises :class:`ValueError` for an empty history.
    """
    if not history:
        raise ValueError("nothing to judge: no generation has ended")
    case = Case(replay(history), config, now, jitter)
    for rule in RULES:
        verdict = rule(case)
        if verdict is not None:
            return verdict
    return _go(case, f"restart {case.used + 1}: {_how_far(case)}")


def _fatal_code(case: Case) -> Verdict | None:
    if case.code is None or case.code not in case.config.fatal_exit_codes:
        return None
    return _stop(case, f"exit code {case.code} is in --fatal-exit-codes")


def _node_change(case: Case) -> Verdict | None:
    if case.record.kind not in NEUTRAL_KINDS:
        return None
    changes = run_length(case.judged, lambda one: one.neutral and not one.progress)
    limit = case.config.max_membership_changes
    if case.config.max_restarts is None and changes >= limit:
        return _give_up(f"the nodes changed {changes} times in a row without any progress")
    return Verdict(True, "the nodes changed: not counted as a restart", counts=False)


def _port_taken(case: Case) -> Verdict | None:
    if not case.last.port_taken:
        return None
    retries = run_length(case.judged, lambda one: one.port_taken)
    return Verdict(True, f"a port was taken at start-up: free retry {retries} of {MAX_PORT_RETRIES}", counts=False)


def _cannot_start(case: Case) -> Verdict | None:
    if not case.first_try or case.last.lived:
        return None
    name = exception_name(case.record)
    missing = name == "FileNotFoundError" and not case.record.place
    if name in CANNOT_START or missing:
        return _stop(case, f"{_what(case)} before the first step: a restart cannot help")
    if case.record.kind == "spawn":
        why = f" ({case.record.message})" if case.record.message else ""
        text = f"a worker could not be started{why}: a restart cannot help"
        return Verdict(False, text, case.code or int(ExitCode.USAGE))
    return None


def _total(case: Case) -> Verdict | None:
    total = case.config.max_restarts
    if total is None:
        return None
    if not case.last.counts:
        return _go(case, f"the script asked for a restart after {case.last.progress}: not counted")
    if case.used >= total:
        used = {0: "no restart is allowed", 1: "the only restart is used up"}.get(
            total, f"all {total} restarts are used up"
        )
        return _stop(case, f"{_what(case)}, and {used} (--max-restarts {total})")
    return _within_budget(case) or _go(case, f"restart {case.used + 1} of {total} after {_what(case)}")


def _within_budget(case: Case) -> Verdict | None:
    budget = case.config.budget
    if budget is None or not case.last.counts:
        return None
    recent = sum(one.counts and one.record.ended_at > case.now - budget.window_s for one in case.judged[:-1])
    if recent < budget.restarts:
        return None
    return _stop(
        case, f"{_what(case)}, after {recent} restart{plural(recent)} within {budget.window_s:g} s (--restart-budget)"
    )


def _died_at_start(case: Case) -> Verdict | None:
    if case.forgiven or not case.first_try or case.last.lived or case.record.kind not in ("exit", "exception"):
        return None
    if case.record.resume_from is not None or is_passing(case.record):
        return None
    if case.record.uptime_s is not None and case.record.uptime_s >= case.config.start_window_s:
        return None
    return _stop(case, f"{_what(case)} before the first step of the first generation: a restart would meet it again")


def _died_loading_twice(case: Case) -> Verdict | None:
    if case.forgiven or not case.last.died_loading:
        return None
    earlier = [one for one in case.judged[:-1] if not one.neutral]
    if not earlier or not earlier[-1].died_loading:
        return None
    first, second = earlier[-1].record.resume_from, case.record.resume_from
    if first == second:
        return _give_up(f"{_what(case)} while loading {second}, for the second time")
    return _give_up(
        f"{_what(case)} while loading {second}, as before while loading {first}: not the checkpoint's fault"
    )


def _same_failure(case: Case) -> Verdict | None:
    earlier = [one for one in case.judged[:-1] if not one.neutral or one.progress]
    if case.forgiven or not earlier or earlier[-1].neutral or case.last.died_loading:
        return None
    before, now = earlier[-1].record, case.record
    if not now.exception or is_passing(now) or _signature(before) != _signature(now):
        return None
    step, ticks = now.failed_at
    at = f" at step {step}" if step is not None else f" after {ticks} optimizer step{plural(ticks)}"
    where = f" in {now.place}" if now.place else ""
    pair = f"generations {before.generation} and {now.generation}"
    return _give_up(f"the same {exception_name(now)}{where}{at} ended {pair}: a restart would meet it again")


def _no_progress(case: Case) -> Verdict | None:
    limit = case.config.max_no_progress
    if case.config.budget is not None or case.idle < limit:
        return None
    return _give_up(
        f"{case.idle} generation{plural(case.idle)} in a row made no progress, the last one ended by {_what(case)}"
    )


def _loading(case: Case) -> Verdict | None:
    if not case.last.died_loading:
        return None
    what = f"{_what(case)} before the first step while loading {case.record.resume_from}"
    return _go(case, f"restart {case.used + 1}: {what}, the next generation resumes from the one before it")


RULES: tuple[Rule, ...] = (
    _fatal_code,
    _node_change,
    _port_taken,
    _cannot_start,
    _total,
    _within_budget,
    _died_at_start,
    _died_loading_twice,
    _same_failure,
    _no_progress,
    _loading,
)


def backoff_s(idle: int, jitter: float) -> float:
    """Seconds before a restart after ``idle`` generations in a row without progress: 0, 1, 2, 4, … 60, and jitter."""
    if idle < 2:
        return 0.0
    base = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(idle - 2, 10))
    return min(BACKOFF_MOST_S, base * (1 + jitter / 4))


def _go(case: Case, reason: str) -> Verdict:
    delay_s = 0.0 if case.last.progress else backoff_s(case.idle, case.jitter)
    return Verdict(True, reason, delay_s=delay_s, counts=case.last.counts)


def _stop(case: Case, reason: str) -> Verdict:
    return Verdict(False, reason, case.code)


def _give_up(reason: str) -> Verdict:
    return Verdict(False, reason, int(ExitCode.NO_PROGRESS))


def _how_far(case: Case) -> str:
    if case.last.progress:
        return f"{_what(case)}, but {case.last.progress}"
    told = f"{_what(case)}, {case.idle} of {case.config.max_no_progress} generations without progress"
    record = case.record
    if record.ticks and record.step is None and not record.checkpoints:
        most = max(one.record.ticks for one in case.judged)
        told += f" ({record.ticks} optimizer steps, {most} at most; a checkpoint or heartbeat.beat(step) tells more)"
    return told


def _what(case: Case) -> str:
    record = case.record
    if record.kind == "stall":
        return "a stalled rank"
    if record.kind == "peer":
        return "a failure on another node"
    if record.kind == "request":
        return f"a restart on request ({record.message or 'no reason given'})"
    if record.kind == "spawn":
        return "a worker that could not be started"
    if record.exception:
        return f"{exception_name(record)} in {record.place}" if record.place else exception_name(record)
    if record.exit_code is not None and record.exit_code < 0:
        return f"death by {signal_name(-record.exit_code)}"
    return "a failure" if record.exit_code is None else f"exit code {record.exit_code}"


def _signature(record: GenerationRecord) -> tuple[object, ...]:
    # Where the script tells no step, the same number of optimizer steps from the same checkpoint is the same step.
    step, ticks = record.failed_at
    reached = (ticks, record.resume_step) if step is None else (step,)
    return (record.exception, record.place or record.message, reached)
