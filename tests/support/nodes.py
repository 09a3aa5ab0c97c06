"""Several nodes of one job, played by agents on this machine."""

from __future__ import annotations

import uuid
from pathlib import Path

from support.jobs import Job, Launcher


class Nodes:
    """Agents of one job, one rank each."""

    def __init__(self, ftlaunch: Launcher, endpoint: str, backend: str = "etcd") -> None:
        self._ftlaunch = ftlaunch
        self._backend = backend
        self.job_id = uuid.uuid4().hex[:8]
        meeting = ("--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", self.job_id)
        self._options = ("--allow-multiple-agents-per-node", *meeting)

    def __call__(self, nnodes: str, *rest: str | Path, hosts: bool = True) -> Job:
        """Start one; ``hosts``: whether it is where they meet, without a server."""
        conf = "node_timeout=3,last_call_timeout=1" + ("" if self._backend == "etcd" else f",is_host={hosts}")
        return self._ftlaunch(*self._options, "--rdzv-conf", conf, "--nnodes", nnodes, *rest)
