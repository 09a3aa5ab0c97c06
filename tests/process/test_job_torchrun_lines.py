"""Command lines as they are written for torchrun, with ``torchrun`` replaced by ``ftlaunch`` and nothing else."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support.jobs import Job, Launcher

BODY = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
if os.environ["RANK"] == "3" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": os.kill(os.getpid(), 9)
"""
ONE_NODE = {
    "docs standalone": "--standalone --nnodes=1 --nproc-per-node=4",
    "docs standalone, underscores": "--standalone --nproc_per_node=4",
    "nothing but ranks": "--nproc_per_node 4",
    "tutorial": "--nnodes=1 --nproc_per_node=4 --rdzv_id=100 --rdzv_backend=c10d --rdzv_endpoint=localhost:PORT",
    "old launch script": "--nnodes 1 --node_rank 0 --nproc_per_node 4 --master_addr localhost --master_port PORT",
    "elastic on one node": "--nnodes=1:1 --nproc-per-node=4 --max-restarts=3 --rdzv-id=7 --rdzv-backend=c10d "
    "--rdzv-endpoint=127.0.0.1:PORT",
    "logs": "--nproc-per-node 4 --log-dir logs -r 3 -t 3 --role trainer",
}
TWO_NODES = {
    "docs c10d": ("--nnodes=2 --nproc-per-node=2 --rdzv-id=5 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:PORT", {}),
    "slurm script": (
        "--nnodes 2 --nproc_per_node 2 --rdzv_id 31337 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:PORT",
        {"SLURM_NODEID": "NODE"},
    ),
    "elastic": ("--nnodes=1:2 --nproc-per-node=2 --max-restarts=3 --rdzv-id=5 --rdzv-backend=c10d "
                "--rdzv-endpoint=127.0.0.1:PORT --rdzv-conf last_call_timeout=5", {}),
    "static": ("--nnodes=2 --nproc_per_node=2 --node_rank=NODE --master_addr=127.0.0.1 --master_port=PORT", {}),
    "Kubeflow": (
        "",
        {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "2",
            "PET_NODE_RANK": "NODE",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": "PORT",
        },
    ),
}  # fmt: skip


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def check(jobs: list[Job]) -> None:
    assert [job.wait(60) for job in jobs] == [0] * len(jobs), [job.err for job in jobs]
    together = "".join(job.out for job in jobs)
    assert all(f"rank {rank} of 4 ['--lr', '0.1', '--', '-h']" in together for rank in range(4)), together


@pytest.mark.parametrize("line", ONE_NODE.values(), ids=ONE_NODE)
def test_one_node(ftlaunch: Launcher, tmp_path: Path, line: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(BODY)
    options = line.replace("PORT", free_port()).split()
    check([ftlaunch(*options, script, "--lr", "0.1", "--", "-h", cwd=tmp_path)])


@pytest.mark.parametrize(("line", "environment"), TWO_NODES.values(), ids=TWO_NODES)
def test_two_nodes(ftlaunch: Launcher, tmp_path: Path, line: str, environment: dict[str, str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(BODY)
    port = free_port()
    jobs = []
    for number in range(2):
        # The two nodes are one machine here; this is the only thing that no such line has.
        variables = {"FTLAUNCH_ALLOW_MULTIPLE_AGENTS_PER_NODE": "1", **environment}
        env = {name: value.replace("NODE", str(number)).replace("PORT", port) for name, value in variables.items()}
        options = line.replace("PORT", port).replace("NODE", str(number)).split()
        jobs.append(ftlaunch(*options, script, "--lr", "0.1", "--", "-h", env=env))
    check(jobs)
