"""``ftctl check``: what it finds on this machine and in the network."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.etcd import etcd
from support.needs import needs_etcd


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('never run')\nraise SystemExit(5)\n")
    return path


def check(*arguments: str | Path, code: int = 0, **environment: str) -> dict[str, Any]:
    """Run it in a process of its own: it makes itself a child subreaper."""
    done = call("--json", *arguments, **environment)
    assert done.returncode == code, done.stdout + done.stderr
    shape: dict[str, Any] = json.loads(done.stdout)
    return shape


def call(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "check", *map(str, arguments)]
    return subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def told(shape: dict[str, Any], subject: str) -> list[tuple[str, str]]:
    return [(each["level"], each["text"]) for each in shape["findings"] if each["subject"] == subject]


def test_a_fit_machine(script: Path) -> None:
    shape = check("--nproc-per-node", "2", script, "--lr", "1")
    assert shape["fit"] is True
    assert shape["settings"]["nproc-per-node"] == {"value": "2", "origin": "flag --nproc-per-node"}
    assert told(shape, "script") == [("ok", str(script))]
    for subject in ("detection", "kernel", "rendezvous", "port", "run directory", "sockets"):
        assert [level for level, _ in told(shape, subject)] == ["ok"], subject
    assert {each["subject"] for each in shape["findings"]} >= {"cgroup", "GPUs", "memory", "ulimit -n", "/dev/shm"}


def test_it_reads_as_a_list_with_a_verdict(script: Path) -> None:
    done = call("--max-restarts", "0", script, PET_TEE="3")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "settings that are not the default"
    assert any("tee" in line and "(environment PET_TEE)" in line for line in lines)
    assert any(line.startswith("WARNING  restarts") and "--max-restarts 0" in line for line in lines)
    assert lines[-1].startswith("fit, with ")
    assert "# Stalls" in call("--all-settings", script).stdout


def test_nothing_is_started_and_nothing_stays(script: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    before = sorted(os.listdir(os.environ["TMPDIR"]))
    check(script, "--lr", "1", XDG_STATE_HOME=str(state))
    assert not state.exists() and sorted(os.listdir(os.environ["TMPDIR"])) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--nproc-per-node", "x", "train.py"), "--nproc-per-node must be"),
        (("missing.py",), "'missing.py' does not exist"),
        ((), "no training script given"),
        (("--no-such-option", "train.py"), "--no-such-option"),
    ],
)
def test_what_ftlaunch_would_refuse_is_wrong_usage(arguments: tuple[str, ...], text: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2 and not done.stdout
    assert text in done.stderr and done.stderr.count("\n") == 1


def test_a_script_that_is_no_python(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\nprint(\n")
    shape = check(path, code=1)
    assert shape["fit"] is False and "not valid Python in line 2" in told(shape, "script")[0][1]
    path.write_bytes(b"\0")
    assert told(check(path, code=1), "script")[0][0] == "error"


def test_a_port_that_is_taken(script: Path) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        shape = check("--master-port", port, script, code=1)
    ((level, text),) = told(shape, "port")
    assert level == "error" and port in text and "leave it out" in text


def test_directories_that_cannot_be_written(script: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "below"
    for option, subject in (("--log-dir", "--log-dir"), ("--run-dir", "run directory")):
        assert told(check(option, nowhere, script, code=1), subject)[0][0] == "error"
    shape = check("--log-dir", tmp_path / "new", "--checkpoint-dir", tmp_path / "ck", script)
    assert told(shape, "--log-dir")[0][0] == told(shape, "--checkpoint-dir")[0][0] == "ok"
    assert not (tmp_path / "new").exists()


def test_a_meeting_point_that_nobody_answers(script: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        shape = check("--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint, "--nnodes", "2", script, code=1)
        assert [level for level, _ in told(shape, "etcd")] == ["warning", "error"]
        shape = check("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--nnodes", "2", script)
    assert [level for level, _ in told(shape, "rendezvous")] == ["note"]


@needs_etcd
def test_etcd_is_asked_and_timed(script: Path) -> None:
    with etcd() as cluster:
        options = ("--rdzv-backend", "etcd", "--rdzv-endpoint", cluster.endpoints, "--nnodes", "2")
        ((level, text),) = told(check(*options, script), "etcd")
        assert level in ("ok", "warning") and "1 of 1 endpoints" in text and "ms for a write" in text
        assert cluster.members[0].keys("/") == {}


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_a_small_shared_memory_is_warned_of(script: Path) -> None:
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    if subprocess.run([*probe, mount], capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount in a namespace of its own")
    argv = f"{mount} && exec {sys.executable} -m ftlaunch.launcher.ftctl check --json {script}"
    done = subprocess.run([*probe, argv], capture_output=True, text=True, timeout=60)
    ((level, text),) = told(json.loads(done.stdout), "/dev/shm")
    assert level == "warning" and "64 MiB" in text and "--shm-size" in text
