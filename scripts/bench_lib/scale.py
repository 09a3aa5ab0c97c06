"""Many agents without ranks on one etcd: what agreeing costs, by the number of nodes."""

from __future__ import annotations

import json

from bench_lib.contenders import ROOT, Contender
from bench_lib.runner import start
from bench_lib.settings import Figures, Settings
from support.etcd import etcd, find_binary

SIZES = (10, 30, 100, 300, 1000)
SHOWN = ("form_s", "reform_messages_per_agent", "reform_writes", "reform_writes_per_agent", "reform_agent_cpu_ms")
_AGENTS = ROOT / "scripts" / "workloads" / "agents.py"
_TIMEOUT_S = 300.0


def crowd(size: int, python: str = "python") -> Contender:
    """Return so many agents as a contender."""
    return Contender(f"ftlaunch, {size:,} nodes", "ftlaunch", python, (str(size),))


def missing() -> str:
    """Return what is missing for this; empty when nothing is."""
    return "" if find_binary() else "needs etcd"


def agree(contender: Contender, settings: Settings) -> Figures:
    """Form the first generation, and another one after each of ``rounds`` failures."""
    (size,) = contender.options
    # The suite's servers go without fsync(2); here every write is on disk before it counts.
    with etcd(extra=["--unsafe-no-fsync=false"]) as server:
        arguments = [size, server.endpoints, str(server.members[0].pid), str(settings.rounds)]
        with start([str(contender.path), str(_AGENTS), *arguments], contender.environment) as job:
            job.finish(_TIMEOUT_S)
            found: Figures = json.loads((job.out / "agents.json").read_text())
    return {"nodes": float(size), **found}
