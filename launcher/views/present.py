"""The present state of a node, gathered from the parts of the job for ``ftctl status``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher.config import RestartConfig
from ftlaunch.launcher.decision.state import WorkerStatus
from ftlaunch.launcher.host import proctree
from ftlaunch.launcher.host.spare_room import resident_bytes
from ftlaunch.launcher.journal.incident import Incident
from ftlaunch.launcher.views import hearsay, overview

if TYPE_CHECKING:
    from ftlaunch.launcher.control.office import Office


def this_node(office: Office, began_at: float, now: float) -> dict[str, Any]:
    """This node, as JSON knows it; see :func:`ftlaunch.launcher.views.overview.describe_node`."""
    state, config, pool = office.agent.state, office.config, office.crew.pool
    node = overview.NodeFacts(
        host=os.uname().nodename,
        agent_pid=os.getpid(),
        job=config.rendezvous.job_id,
        run=office.run,
        nproc=config.workers.nproc,
        began_at=began_at,
        phase_since=max(began_at, office.agent.phase_since),
        restart_limit=describe_limit(config.restarts),
        listening=config.heartbeat.enabled,
        standby_mode=config.standby.mode.value if pool is not None else "off",
        standbys_ready=pool.ready() if pool is not None else 0,
        excluded=tuple((one.name, one.said) for one in office.agent.exclusions),
        last_cause=describe_cause(office.narrator.incident),
        faults=office.narrator.faults,
        processes={
            worker.pid: _process_facts(worker.pid)
            for worker in state.workers.values()
            if worker.pid and worker.status is not WorkerStatus.EXITED
        },
    )
    heard = hearsay.heard_from(office.ear.watch, now) if config.heartbeat.enabled else overview.Heard()
    return overview.describe_node(state, node, heard, now)


def describe_limit(config: RestartConfig) -> str:
    """How many restarts there may be, to follow their number."""
    if config.max_restarts is not None:
        return f"of at most {config.max_restarts}"
    if config.budget is not None:
        return f"of at most {config.budget.restarts} within {config.budget.window_s:g} s"
    return f"as long as there is progress, {config.max_no_progress} without"


def describe_cause(incident: Incident | None) -> overview.Cause | None:
    """The last incident in one line: what it was found to be, else what was seen first."""
    if incident is None:
        return None
    cause, found = incident.cause, incident.diagnosis
    rank, reason = cause.rank, cause.reason
    if found is not None and found.sentence:
        rank = found.rank if found.rank is not None else rank
        # The sentence begins with the rank, which stands in front anyway.
        reason = found.sentence.removeprefix(f"rank {rank} ").partition(") ")[2] or found.sentence
    return overview.Cause(
        incident.generation, rank, cause.kind, reason, incident.decision, incident.decision_reason, incident.time
    )


def _process_facts(pid: int) -> overview.ProcessFacts:
    entry = proctree.read_entry(pid)
    if entry is None:
        return overview.ProcessFacts()
    traced = entry.state == "T" and proctree.is_traced(pid)
    return overview.ProcessFacts(resident_bytes(pid), "t" if traced else entry.state)
