"""What ``ftctl status`` shows, as JSON: one node from what its agent knows, several nodes put together. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ftlaunch.launcher.decision.resume_point import resume_path
from ftlaunch.launcher.decision.state import Phase, State, WorkerState, WorkerStatus
from ftlaunch.launcher.exit_codes import signal_name

VERSION = 1
_STALE_STEPS = 2.0
"""Without a step for so many step times, a rate of the past is none of the present."""
_OF_THE_JOB = ("ranks", "limits", "excluded")
_OS_STATES = {"T": "stopped", "t": "traced", "D": "blocked", "Z": "ending"}


@dataclass(frozen=True)
class RankFacts:
    """What was heard of one rank of this generation. Times in seconds."""

    local_rank: int
    phase: str = ""
    """How far its start-up is: a name of :class:`ftlaunch.heartbeat.watching.tracks.Phase`, in small letters."""
    sections: tuple[str, ...] = ()
    step: int | None = None
    ticks: int = 0
    total: int | None = None
    """What the script gave as ``beat(total=…)``: the step with which it ends."""
    step_rate: float | None = None
    beaten: bool = False
    beat_age_s: float | None = None
    """Since the last sign of progress of any kind, or since the start."""
    silence_s: float | None = None
    """What counts towards ``limit_s``; ``None`` for a rank that is not judged now."""
    limit_s: float | None = None
    """``None``: no limit."""
    limit_name: str = ""
    limit_origin: str = ""
    straggles: str = ""
    """How it is slower than the others, as a predicate; empty if it is not."""


@dataclass(frozen=True)
class LimitFacts:
    """The limit of one section, ``step`` outside of all, and what was seen of it: the longest silence, of how many."""

    name: str
    seconds: float | None
    """``None``: no limit."""
    origin: str
    """``configured``, ``learnt`` or ``default``."""
    longest_s: float = 0.0
    seen: int = 0


@dataclass(frozen=True)
class Heard:
    """Everything that the hearing side tells. Empty where nobody listens."""

    ranks: Mapping[int, RankFacts] = field(default_factory=dict)
    limits: tuple[LimitFacts, ...] = ()


@dataclass(frozen=True)
class ProcessFacts:
    """What the kernel says of one process: resident bytes, and its state letter of proc(5), ``t`` when traced."""

    memory_bytes: int = 0
    state: str = ""


@dataclass(frozen=True)
class Cause:
    """What ended a generation, in one line. ``time`` is wall time, for people."""

    generation: int
    rank: int | None
    kind: str
    reason: str
    decision: str = ""
    decision_reason: str = ""
    time: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """What is known of a node beside the state of its agent. Moments are on the clock of ``now``."""

    host: str
    agent_pid: int
    job: str
    run: str
    nproc: int
    began_at: float
    phase_since: float
    restart_limit: str
    """In words, to follow the number of restarts."""
    listening: bool = True
    standby_mode: str = "off"
    standbys_ready: int = 0
    excluded: tuple[tuple[str, str], ...] = ()
    """Nodes that are left out of the job, and how that came."""
    last_cause: Cause | None = None
    faults: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    """By global rank: how often it was the first to fail, and of what last."""
    processes: Mapping[int, ProcessFacts] = field(default_factory=dict)
    """By pid."""


def describe_node(state: State, node: NodeFacts, heard: Heard, now: float) -> dict[str, Any]:
    """One node as JSON knows it. Durations end in ``_s``; what is not known is ``null``."""
    world = state.world
    offset = world.rank_offset if world is not None else 0
    ranks = [
        _describe_rank(worker, offset + local_rank, state, node, heard.ranks.get(local_rank))
        for local_rank, worker in sorted(state.workers.items())
    ]
    return {
        "version": VERSION,
        "job": world.run_id if world is not None else node.job,
        "run": node.run,
        "host": node.host,
        "agent_pid": node.agent_pid,
        "phase": state.phase.value,
        "phase_s": round(now - node.phase_since, 3),
        "up_s": round(now - node.began_at, 3),
        "generation": state.generation,
        "world_size": world.world_size if world is not None else None,
        "nodes": len(world.members) if world is not None else None,
        "group_rank": world.group_rank if world is not None else None,
        "resume_from": resume_path(world),
        "restarts": max(0, state.generation),
        "restarts_counted": world.restart_count if world is not None else 0,
        "restart_limit": node.restart_limit,
        "listening": node.listening,
        "standby": {"mode": node.standby_mode, "ready": node.standbys_ready, "wanted": node.nproc},
        "excluded": [{"name": name, "why": why} for name, why in node.excluded],
        "last_cause": None if node.last_cause is None else asdict(node.last_cause),
        "ending": None if state.ending is None else state.ending.reason,
        "progress": progress(ranks),
        "limits": [asdict(limit) for limit in heard.limits],
        "ranks": ranks,
    }


def _describe_rank(
    worker: WorkerState, rank: int, state: State, node: NodeFacts, facts: RankFacts | None
) -> dict[str, Any]:
    process = node.processes.get(worker.pid, ProcessFacts())
    failures, last_cause = node.faults.get(rank, (0, None))
    known = facts if facts is not None else RankFacts(worker.local_rank)
    return {
        "rank": rank,
        "host": node.host,
        "pid": worker.pid or None,
        "state": rank_state(worker, state.phase, process.state, facts),
        "exit_code": worker.exit_code,
        **asdict(known),
        "sections": list(known.sections),
        "step_rate": _current_rate(known),
        "memory_bytes": process.memory_bytes or None,
        "failures": failures,
        "last_cause": last_cause,
    }


def rank_state(worker: WorkerState, phase: Phase, os_state: str, facts: RankFacts | None) -> str:
    """One word or two: ``running``, ``starting`` (no beat yet), ``stopped``, ``failing``, ``killed by SIGKILL``, …"""
    if worker.status is WorkerStatus.EXITED:
        code = worker.exit_code
        if code == 0:
            return "finished"
        return f"killed by {signal_name(-code)}" if code is not None and code < 0 else f"exited with {code}"
    if worker.status is WorkerStatus.FAILING:
        return "failing"
    if not worker.pid:
        return "not started"
    if os_state in _OS_STATES:
        return _OS_STATES[os_state]
    if phase is Phase.STOPPING:
        return "stopping"
    return "starting" if facts is not None and not facts.beaten else "running"


def _current_rate(facts: RankFacts) -> float | None:
    rate, age = facts.step_rate, facts.silence_s
    if rate and age and not facts.sections and age * rate > _STALE_STEPS:
        return 1.0 / age
    return rate


def progress(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far the job is: the slowest rank's step of the largest total; ``None`` until a script tells a step.

    ``eta_s`` only where the script tells a total: what is left at the present rate.
    """
    steps = [rank["step"] for rank in ranks if rank.get("step") is not None]
    if not steps:
        return None
    step = min(steps)
    total = max((rank["total"] for rank in ranks if rank.get("total") is not None), default=None)
    rates = [rank["step_rate"] for rank in ranks if rank.get("step_rate")]
    rate = statistics.median(rates) if rates else None
    eta_s = max(0.0, total - step) / rate if total is not None and rate else None
    return {"step": step, "total": total, "step_rate": rate, "eta_s": eta_s}


def merge(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole job from one or more nodes, the asked one first; what is of another version is left out.

    A node that is behind (an older generation than the rest) is shown with its own phase, and its ranks are dropped:
    they are none of the present world.
    """
    known = [node for node in nodes if node.get("version") == VERSION]
    if not known:
        return {"version": VERSION, "nodes": [], "ranks": [], "limits": [], "progress": None}
    generation = max(node["generation"] for node in known)
    current = [node for node in known if node["generation"] == generation]
    ranks = sorted((rank for node in current for rank in node["ranks"]), key=lambda rank: rank["rank"])
    phases = list(dict.fromkeys(node["phase"] for node in current))
    first = current[0]
    causes = [node["last_cause"] for node in known if node.get("last_cause")]
    return {
        "version": VERSION,
        "job": first["job"],
        "run": known[0]["run"],
        "generation": generation,
        "phase": phases[0] if len(phases) == 1 else " / ".join(phases),
        "phase_s": max(node["phase_s"] for node in current),
        "up_s": max(node["up_s"] for node in known),
        "world_size": first["world_size"],
        "resume_from": first["resume_from"],
        "restarts": first["restarts"],
        "restarts_counted": first["restarts_counted"],
        "restart_limit": first["restart_limit"],
        "listening": all(node["listening"] for node in current),
        "standby": _sum_standby(known),
        "excluded": known[0]["excluded"],
        # Ranks of other nodes fail "with" the first one; the node of the first cause knows its rank.
        "last_cause": max(causes, key=lambda cause: (cause["generation"], cause["rank"] is not None), default=None),
        "ending": next((node["ending"] for node in known if node["ending"]), None),
        "progress": progress(ranks),
        "limits": _merge_limits(current),
        "nodes": [{key: value for key, value in node.items() if key not in _OF_THE_JOB} for node in known],
        "ranks": ranks,
    }


def _sum_standby(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    modes = list(dict.fromkeys(node["standby"]["mode"] for node in nodes))
    counts = {key: sum(node["standby"][key] for node in nodes) for key in ("ready", "wanted")}
    return {"mode": "/".join(modes), **counts}


def _merge_limits(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By name, the longest of all nodes: ranks in step wait for the slowest one anyway."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        for limit in node["limits"]:
            known = found.get(limit["name"])
            if known is None or _longer(limit["seconds"], known["seconds"]):
                found[limit["name"]] = dict(limit)
    return list(found.values())


def _longer(one: float | None, other: float | None) -> bool:
    return other is not None and (one is None or one > other)
