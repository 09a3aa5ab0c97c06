"""``ftctl status`` of a job with several nodes, from each of them, through etcd and through c10d."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_server import etcd, find_binary

from support.jobs import Job, Launcher
from support.waiting import wait_until

SCRIPT = """
import os, threading
from ftlaunch.heartbeat import beat
for step in range(1, 100000):
    beat(step=step, total=100000)
    threading.Event().wait(0.01)
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    if find_binary() is None:
        yield ""
        return
    with etcd() as cluster:
        yield cluster.endpoints


@pytest.fixture(params=["etcd", "c10d"])
def meeting(request: pytest.FixtureRequest, endpoint: str) -> list[str]:
    if request.param == "etcd":
        if not endpoint:
            pytest.skip("etcd is missing")
        where = endpoint
    else:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            where = f"127.0.0.1:{holder.getsockname()[1]}"
    return ["--rdzv-backend", request.param, "--rdzv-endpoint", where, "--rdzv-id", uuid.uuid4().hex[:8]]


@pytest.fixture
def nodes(ftlaunch: Launcher, meeting: list[str], tmp_path: Path) -> tuple[Job, Job]:
    """Two nodes with two ranks each, at work."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["--allow-multiple-agents-per-node", "--nnodes", "2", "--nproc-per-node", "2", "--standby", "off"]
    first, second = (ftlaunch(*meeting, *options, script) for _ in range(2))
    wait_until(lambda: first.events("training_resumed") and second.events("training_resumed"), 40, "both train")
    return first, second


def ftctl(job: Job, *arguments: str) -> str:
    argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", *arguments, "--run", str(job.run_dir)]
    environment = {**os.environ, "XDG_STATE_HOME": str(job.home / "state")}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, cwd="/")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def status(job: Job, *arguments: str) -> dict[str, Any]:
    shape: dict[str, Any] = json.loads(ftctl(job, "status", "--json", *arguments))
    return shape


def test_every_node_shows_all_nodes_and_ranks(nodes: tuple[Job, Job]) -> None:
    for job, other in (nodes, nodes[::-1]):
        wait_until(lambda job=job: all(rank["beaten"] for rank in status(job)["ranks"]), 20)
        seen = status(job)
        assert [rank["rank"] for rank in seen["ranks"]] == [0, 1, 2, 3]
        assert all(rank["state"] == "running" and rank["step"] >= 1 for rank in seen["ranks"])
        assert [node["agent_pid"] for node in seen["nodes"]] == [job.pid, other.pid]
        assert seen["run"] == str(job.run_dir) and seen["world_size"] == 4
        text = ftctl(job, "status")
        assert "2 nodes   4 ranks" in text
        rows = [line.split()[0] for line in text.partition("RANK")[2].splitlines() if line[:1].isdigit()]
        assert rows == ["0", "1", "2", "3"]
        alone = status(job, "--this-node")
        assert len(alone["ranks"]) == 2 and [node["agent_pid"] for node in alone["nodes"]] == [job.pid]


def test_watch_goes_on_without_a_node_that_does_not_answer(nodes: tuple[Job, Job]) -> None:
    first, second = nodes
    argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "status", "--watch", "--json", "--interval", "0.2"]
    watching = subprocess.Popen(
        [*argv, "--run", str(first.run_dir)],
        env={**os.environ, "XDG_STATE_HOME": str(first.home / "state")},
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert watching.stdout is not None
    try:
        assert len(json.loads(watching.stdout.readline())["ranks"]) == 4
        second.signal(signal.SIGSTOP)
        seen = next(shape for shape in map(json.loads, watching.stdout) if len(shape["nodes"]) == 1)
        assert [rank["host"] for rank in seen["ranks"]] == [os.uname().nodename] * 2
        assert "1 of 2 nodes shown" in ftctl(first, "status")
        second.signal(signal.SIGCONT)
        assert next(shape for shape in map(json.loads, watching.stdout) if len(shape["ranks"]) == 4)
    finally:
        second.signal(signal.SIGCONT)
        watching.kill()
        watching.wait()
        watching.stdout.close()
