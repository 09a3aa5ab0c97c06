"""Serves ``status`` for a job with any number of ranks that exists only here. ``python control_stand_in.py DIR RANKS``.

Makes a run directory below DIR (a state root), says ``ready``, and serves until its stdin is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.control.control_socket import ControlServer
from ftlaunch.launcher.decision.actions import Manner
from ftlaunch.launcher.decision.state import Phase, State, WorkerState, WorkerStatus
from ftlaunch.launcher.journal.rundir import RUN_FILE, make_run_id, owner_facts, this_owner, write_json
from ftlaunch.launcher.views import overview
from ftlaunch.launcher.views.overview import Cause, Heard, LimitFacts, NodeFacts, ProcessFacts, RankFacts
from ftlaunch.rendezvous.interface import Member, World


def node_facts(ranks: int, **changes: Any) -> NodeFacts:
    """A node in the middle of its third generation."""
    given = {
        "host": "node-a",
        "agent_pid": 4000,
        "job": "train",
        "run": "/runs/one",
        "nproc": ranks,
        "began_at": 0.0,
        "phase_since": 60.0,
        "restart_limit": "as long as there is progress, 3 without",
        "standby_mode": "auto",
        "standbys_ready": ranks,
        "last_cause": Cause(1, 3, "signal", "was killed by SIGKILL", "restart", "restart 2: it reached step 175"),
        "faults": {3: (2, "was killed by SIGKILL")},
        "processes": {5000 + i: ProcessFacts(memory_bytes=(900 + i) << 20, state="S") for i in range(ranks)},
    }
    return NodeFacts(**{**given, **changes})


def world(ranks: int, generation: int = 2) -> World:
    """One node."""
    member = Member("node-a", "node-a", 0, ranks)
    return World(generation, (member,), 0, 0, ranks, "node-a", 29500, 2, "train")


def state(ranks: int, phase: Phase = Phase.RUNNING, **changes: Any) -> State:
    """All ranks run."""
    workers = {i: WorkerState(i, pid=5000 + i) for i in range(ranks)}
    given = {"slots": ranks, "phase": phase, "generation": 2, "world": world(ranks), "workers": workers}
    return State(**{**given, **changes})


def heard(ranks: int, step: int = 1200) -> Heard:
    """All beat, rank 7 is late, rank 9 saves, rank 11 is slow."""
    facts = {}
    for i in range(ranks):
        silence = 25.0 if i == 7 else 0.04 + (i % 5) / 100
        facts[i] = RankFacts(
            local_rank=i,
            phase="stepping",
            sections=("checkpoint",) if i == 9 else (),
            step=step - (i == 7),
            total=10000,
            step_rate=12.5,
            beaten=True,
            beat_age_s=silence,
            silence_s=silence,
            limit_s=30.0,
            limit_name="checkpoint" if i == 9 else "step",
            limit_origin="learnt",
            straggles="takes 0.12 s for a step, the others 0.08 s" if i == 11 else "",
        )
    limits = (LimitFacts("step", 30.0, "learnt", 0.21, 76800), LimitFacts("init", 1800.0, "default"))
    return Heard(facts, limits)


def stopping(ranks: int) -> State:
    """Half of the ranks are dead already."""
    workers = {
        i: WorkerState(i, 5000 + i, WorkerStatus.EXITED if i % 2 else WorkerStatus.RUNNING, -9 if i % 2 else None)
        for i in range(ranks)
    }
    return state(ranks, Phase.STOPPING, workers=workers, manner=Manner.FAILED)


async def serve(root: Path, ranks: int) -> None:
    """Until stdin is closed."""
    began_at = clock.monotonic()
    run = root / make_run_id("stand-in")
    run.mkdir(parents=True)

    async def status(request: Mapping[str, Any]) -> Any:
        now = clock.monotonic()
        node = node_facts(ranks, began_at=began_at, phase_since=began_at, run=str(run))
        told = heard(ranks, step=int((now - began_at) * 12.5))
        return overview.merge([overview.describe_node(state(ranks), node, told, now)])

    server = ControlServer({"status": status})
    path = str(root / "control")
    await server.open(path)
    facts = {"id": run.name, **owner_facts(this_owner(os.uname().nodename)), "control": path}
    write_json(run / RUN_FILE, facts)
    print("ready", flush=True)
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), closed.set)
    await closed.wait()
    await server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
