"""Several nodes of one job, played by agents on this machine."""

from __future__ import annotations

import uuid
from pathlib import Path

from support.jobs import Job, Launcher


class Nodes:
    """Agents of one job, one rank each."""

    def __init__(self, ftlaunch: Launcher, endpoint: str, backend: str = "etcd") -> None:
        self._ftlaunch = ftlaunch
        self.endpoint = endpoint
        self.job_id = uuid.uuid4().hex[:8]
        meeting = ("--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", self.job_id)
        conf = ("--rdzv-conf", "node_timeout=3,last_call_timeout=1")
        self._options = ("--allow-multiple-agents-per-node", *meeting, *conf)

    def __call__(self, nnodes: str, *rest: str | Path) -> Job:
        return self._ftlaunch(*self._options, "--nnodes", nnodes, *rest)
