"""Whether a job took its faults well: from its events, to one finding per fault. Pure.

Everything is measured on CLOCK_MONOTONIC of one machine: from the moment just before the deed to the event
``failure_detected``, and on to ``training_resumed`` of a later generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.launcher.drill.plan import RANK_KINDS, Fault, Kind
from ftlaunch.launcher.journal.records import OF_THE_FAILED, RECOVERY

Event = Mapping[str, Any]

DETECT_S = {Kind.KILL: 0.010, Kind.EXCEPTION: 0.010, Kind.STOP: 3.0, Kind.OOM: 2.0}
"""Budgets of detection, without the margin. A stall may last as long as its limit says; what fails at the next save
only, or at another node only, has none unless it is given."""
MARGIN_S = 0.25
RECOVER_S = 5.0
RESTART_S = 30.0
"""Recovery budget where an agent has to be started anew, or a lease to run out."""
_LIMIT_SLACK = 1.5
"""Silence is looked at anew when half of the limit is over: at the latest then, and half a limit, it is over."""
_QUIET_S = 2.0
"""So long after a fault that must not disturb anything, nothing may happen."""
_BLAMED = frozenset({Kind.KILL, Kind.STOP, Kind.EXCEPTION, Kind.OOM})
_AWAY = frozenset({Kind.AGENT_KILL, Kind.NODE_LOSS})


@dataclass(frozen=True)
class Injection:
    """A fault that was carried out. ``at``: CLOCK_MONOTONIC seconds, just before."""

    fault: str
    at: float
    generation: int = -1
    rank: int | None = None
    step: int | None = None
    limit_s: float | None = None
    """How long the rank might be silent from then on."""


@dataclass(frozen=True)
class Budgets:
    """What holds for faults that have no budget of their own."""

    margin_s: float = MARGIN_S
    recover_s: float | None = None


@dataclass(frozen=True)
class Life:
    """What one agent wrote. ``began_at``: when its process was started."""

    node: int
    began_at: float
    events: Sequence[Event] = ()
    alive: bool = True
    """It has neither said that the job is finished nor vanished."""


@dataclass(frozen=True)
class Finding:
    """How one fault was taken. Times in seconds after the deed; ``None`` for what did not come."""

    fault: Fault
    injection: Injection | None = None
    detected_s: float | None = None
    detect_budget_s: float | None = None
    recovered_s: float | None = None
    recover_budget_s: float | None = None
    generation: int | None = None
    """The generation that it ended."""
    blamed: int | None = None
    """The rank that the incident names as its first cause."""
    reason: str = ""
    warm: str = ""
    """How many ranks of the next generation came from standbys, where some or all did not."""
    problems: tuple[str, ...] = ()
    settled: bool = False
    """Nothing that is still to come can change this finding."""
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Everything that was to be shown was shown."""
        return not self.problems


def injections(lives: Iterable[Life]) -> dict[str, Injection]:
    """What the agents recorded as carried out, by the name of the fault; the last, where one came several times."""
    return {
        injection.fault: injection
        for life in lives
        for event in life.events
        if event["event"] == "fault_injected" and (injection := injection_of(event)) is not None
    }


def injection_of(event: Event) -> Injection | None:
    """A ``fault_injected`` or ``fault_due`` event as a value."""
    fault, at = event.get("fault"), event.get("at")
    if not isinstance(fault, str) or not isinstance(at, (int, float)):
        return None
    generation, limit_s = event.get("generation"), event.get("limit_s")
    return Injection(
        fault,
        float(at),
        generation if isinstance(generation, int) else -1,
        event.get("rank"),
        event.get("step"),
        float(limit_s) if isinstance(limit_s, (int, float)) else None,
    )


def judge(fault: Fault, injection: Injection | None, lives: Sequence[Life], budgets: Budgets, now: float) -> Finding:
    """How the fault was taken, as far as can be told at ``now``."""
    if injection is None:
        return _not_carried_out(fault, lives)
    disturbed = _disturbance(fault, injection, lives)
    if fault.kind is Kind.ETCD_STOP or (fault.kind is Kind.NET_CUT and disturbed is None):
        return _judge_passing(fault, injection, disturbed, now, _over(lives))
    return _judge_failure(fault, injection, lives, budgets, now)


def detect_budget(fault: Fault, injection: Injection, margin_s: float) -> float | None:
    """Within how many seconds the fault is to be detected; ``None`` for no limit."""
    if fault.detect_s is not None:
        return fault.detect_s
    if fault.kind is Kind.SPIN:
        return None if injection.limit_s is None else injection.limit_s * _LIMIT_SLACK + margin_s
    known = DETECT_S.get(fault.kind)
    return None if known is None else known + margin_s


def recover_budget(fault: Fault, budgets: Budgets) -> float:
    """Within how many seconds after the detection training is to go on."""
    if fault.recover_s is not None:
        return fault.recover_s
    if fault.kind in RANK_KINDS:
        return RECOVER_S if budgets.recover_s is None else budgets.recover_s
    return fault.hold_s + max(RESTART_S, budgets.recover_s or 0.0)


def is_warm(events: Sequence[Event], ranks: int) -> bool:
    """Whether all ranks of the running generation beat and could be replaced by standbys; also when there are none."""
    ready: set[object] = set()
    beating = False
    for event in events:
        name = event["event"]
        if name == "standby_off":
            return True
        if name == "workers_started":
            ready, beating = set(), False
        elif name == "training_resumed":
            beating = True
        elif name == "standby_ready":
            ready.add(event.get("local_rank"))
    return beating and len(ready) >= ranks


def _not_carried_out(fault: Fault, lives: Sequence[Life]) -> Finding:
    failed = next(
        (
            event
            for life in lives
            for event in life.events
            if event["event"] == "fault_failed" and event["fault"] == fault.id
        ),
        None,
    )
    if failed is not None:
        return Finding(fault, problems=(str(failed.get("reason")),), settled=True)
    over = _over(lives)
    problem = f"not carried out: the job ended before ({fault.moment})" if over else "not carried out"
    return Finding(fault, problems=(problem,), settled=over)


def _judge_passing(fault: Fault, injection: Injection, disturbed: Event | None, now: float, over: bool) -> Finding:
    """Something that a healthy generation must live through."""
    if disturbed is not None:
        reason, after_s = str(disturbed.get("reason")), disturbed["monotonic"] - injection.at
        problem = f"the job was disturbed by it after {after_s:.2f} s: {reason}"
        return Finding(fault, injection, detected_s=after_s, reason=reason, problems=(problem,), settled=True)
    return Finding(fault, injection, settled=over or now >= injection.at + fault.hold_s + _QUIET_S)


def _disturbance(fault: Fault, injection: Injection, lives: Sequence[Life]) -> Event | None:
    """The first failure, if it came so soon that a fault which ends by itself can have caused it."""
    failure = _first_failure(injection, lives)
    return failure if failure is not None and failure["monotonic"] <= injection.at + fault.hold_s + _QUIET_S else None


def _judge_failure(fault: Fault, injection: Injection, lives: Sequence[Life], budgets: Budgets, now: float) -> Finding:
    failure = None if _is_lonely(fault, lives) else _first_failure(injection, lives)
    resumed = _resumed(fault, injection, failure, lives)
    finding = Finding(
        fault,
        injection,
        detected_s=None if failure is None else failure["monotonic"] - injection.at,
        detect_budget_s=None if _is_lonely(fault, lives) else detect_budget(fault, injection, budgets.margin_s),
        recovered_s=None if resumed is None else resumed - injection.at,
        recover_budget_s=recover_budget(fault, budgets),
        generation=injection.generation if failure is None else failure["generation"],
        blamed=_blamed(failure, lives),
        reason="" if failure is None else str(failure.get("reason")),
        warm=_warm(failure, lives),
        settled=resumed is not None or _over(lives),
        phases_s=_phases(injection, failure, lives),
    )
    return _with_problems(finding, lives)


def _with_problems(finding: Finding, lives: Sequence[Life]) -> Finding:
    fault, problems = finding.fault, []
    detected_s, budget_s = finding.detected_s, finding.detect_budget_s
    if detected_s is None and not _is_lonely(fault, lives):
        problems.append("not detected")
    elif detected_s is not None and budget_s is not None and detected_s > budget_s:
        problems.append(f"detected only after {detected_s:.3f} s, allowed are {budget_s:.3f} s")
    recovery_s = recovery_time(finding)
    if recovery_s is None:
        problems.append("not recovered" if detected_s is not None or _is_lonely(fault, lives) else "")
    elif finding.recover_budget_s is not None and recovery_s > finding.recover_budget_s:
        late = f"recovered only after {recovery_s:.2f} s, allowed are {finding.recover_budget_s:.2f} s"
        problems.append(f"{late} ({finding.warm})" if finding.warm else late)
    if fault.kind in _BLAMED and detected_s is not None and finding.blamed != fault.rank:
        blamed = "no rank" if finding.blamed is None else f"rank {finding.blamed}"
        problems.append(f"{blamed} was blamed for it instead of rank {fault.rank}")
    return Finding(**{**finding.__dict__, "problems": tuple(filter(None, problems))})


def recovery_time(finding: Finding) -> float | None:
    """From the detection to the first step after it; from the deed, where nobody was left to detect it."""
    if finding.recovered_s is None:
        return None
    return finding.recovered_s - (finding.detected_s or 0.0)


def _first_failure(injection: Injection, lives: Sequence[Life]) -> Event | None:
    """Of the generation that the fault hit, or of a later one: one that was ending anyway is no witness."""
    found = [
        event
        for life in lives
        for event in life.events
        if event["event"] == "failure_detected"
        and event["monotonic"] >= injection.at
        and _generation(event) >= injection.generation
    ]
    return min(found, key=lambda event: float(event["monotonic"]), default=None)


def _resumed(fault: Fault, injection: Injection, failure: Event | None, lives: Sequence[Life]) -> float | None:
    """When training went on: a later generation, or any of an agent that was started since."""
    if failure is None and not _is_lonely(fault, lives):
        return None
    ended = injection.generation if failure is None else _generation(failure)
    found = [
        float(event["monotonic"])
        for life in lives
        for event in life.events
        if event["event"] == "training_resumed"
        and event["monotonic"] > injection.at
        and (_generation(event) > ended or (fault.kind in _AWAY and life.began_at > injection.at))
    ]
    return min(found, default=None)


def _blamed(failure: Event | None, lives: Sequence[Life]) -> int | None:
    """Corrected once more is known: a victim may speak before the rank that died is known to be dead."""
    if failure is None:
        return None
    rank = failure.get("rank")
    for life in lives:
        for event in life.events:
            if event["event"] == "cause_corrected" and event["generation"] == failure["generation"]:
                rank = event.get("rank")
    return rank if isinstance(rank, int) else None


def _warm(failure: Event | None, lives: Sequence[Life]) -> str:
    """What a slow recovery is mostly explained by."""
    for life in lives:
        for event in life.events:
            if (
                failure is not None
                and event["event"] == "workers_started"
                and _generation(event) > _generation(failure)
            ):
                warm, ranks = event.get("warm", 0), len(event.get("pids", ()))
                return f"{warm} of {ranks} ranks came from a standby" if warm < ranks else ""
    return ""


def _phases(injection: Injection, failure: Event | None, lives: Sequence[Life]) -> dict[str, float]:
    """When each phase of the recovery was over, in seconds after the deed, on the node that detected it first."""
    if failure is None:
        return {}
    life = next((life for life in lives if any(event is failure for event in life.events)), None)
    found = {"failure_detected": float(failure["monotonic"]) - injection.at}
    for event in life.events if life is not None else ():
        name, generation = event["event"], _generation(event)
        failed = _generation(failure)
        wanted = generation == failed if name in OF_THE_FAILED else generation > failed
        if name in RECOVERY and wanted and name not in found:
            found[name] = float(event["monotonic"]) - injection.at
    return {name: round(seconds, 6) for name, seconds in found.items()}


def _is_lonely(fault: Fault, lives: Sequence[Life]) -> bool:
    """Nobody was there to detect it: the only agent is gone."""
    return fault.kind in _AWAY and len({life.node for life in lives}) < 2


def _over(lives: Sequence[Life]) -> bool:
    return not any(life.alive for life in lives)


def _generation(event: Event) -> int:
    generation = event.get("generation")
    return generation if isinstance(generation, int) else -1
