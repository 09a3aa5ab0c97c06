"""Several nodes of one job, played by agents on this machine."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

from support.jobs import Job, Launcher


def free_endpoint() -> str:
    """Where nothing listens by now, for a first agent to hold the rendezvous."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        return f"127.0.0.1:{holder.getsockname()[1]}"


class Nodes:
    """Starts the agents of one job, which meet at ``endpoint``: an etcd, or where the first of them listens."""

    def __init__(self, ftlaunch: Launcher, endpoint: str, backend: str = "etcd") -> None:
        self._ftlaunch = ftlaunch
        self.endpoint = endpoint
        self.backend = backend
        self.job_id = uuid.uuid4().hex[:8]

    def __call__(
        self,
        nnodes: str,
        *rest: str | Path,
        conf: str = "node_timeout=3,last_call_timeout=1",
        hosts: bool | None = None,
        same_machine: bool = True,
        prefix: Sequence[str] = (),
    ) -> Job:
        """Start one more; ``conf`` is its --rdzv-conf.

        ``hosts``: whether it is where they meet, without a server; left to the agents when not given.
        ``same_machine``: tell it that there are several on this machine, without which they refuse each other.
        """
        if hosts is not None and self.backend != "etcd":
            conf += f",is_host={hosts}"
        several = ("--allow-multiple-agents-per-node",) if same_machine else ()
        meeting = ("--rdzv-backend", self.backend, "--rdzv-endpoint", self.endpoint, "--rdzv-id", self.job_id)
        options = (*several, *meeting, *(("--rdzv-conf", conf) if conf else ()), "--nnodes", nnodes)
        return self._ftlaunch(*options, *rest, prefix=prefix)
