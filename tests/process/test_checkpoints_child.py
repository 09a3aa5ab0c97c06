"""Scanning in a child of its own, and the validator command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftlaunch.launcher.checkpoints import child
from ftlaunch.launcher.checkpoints.child import check, command, read_view
from ftlaunch.launcher.checkpoints.custom import Pattern, Validator
from ftlaunch.launcher.checkpoints.model import View
from ftlaunch.launcher.checkpoints.scan import Request, scan
from ftlaunch.launcher.config import CheckpointConfig
from ftlaunch.launcher.processes import bystanders
from ftlaunch.launcher.resume import Resume
from support import checkpoint_files as files
from support.users import Unprivileged
from support.waiting import wait_until


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def look(root: Path, validator: Validator) -> View:
    return scan(str(root), Request("custom", Pattern.parse(r"step_(?P<step>\d+)"), validator))


def run_child(config: CheckpointConfig, user: Unprivileged | None = None) -> View:
    argv = command(user.python if user else sys.executable, config)
    done = subprocess.run(
        user.command(*argv) if user else argv,
        env={**os.environ, **(user.environment if user else {})},
        capture_output=True,
        timeout=30,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    return read_view(config.directory or "", done.stdout)


def test_validator_decides(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"step_{step}").write_text("ok" if step < 3 else "bad")
    judge = script(tmp_path / "judge", 'grep -q ok "$1" || { echo noise; echo "no ok in it" >&2; exit 4; }')
    view = look(tmp_path, Validator.parse(judge))
    assert [found.step for found in view.complete] == [2, 1]
    assert view.skipped[0].reason == "the validator says no (exit code 4): no ok in it"


def test_validator_with_a_place_for_the_path(tmp_path: Path) -> None:
    (tmp_path / "step_1").write_text("x")
    assert look(tmp_path, Validator.parse("test {path} -ef " + str(tmp_path / "step_1"))).complete


def test_validator_runs_after_the_format_is_verified(tmp_path: Path) -> None:
    files.dcp(tmp_path / "step_1")
    (files.dcp(tmp_path / "step_2") / ".metadata").unlink()
    log = tmp_path / "log"
    judge = script(tmp_path / "judge", f'echo "$1" >> {log}')
    view = scan(str(tmp_path), Request(validator=Validator.parse(judge)))
    assert [found.step for found in view.complete] == [1]
    assert log.read_text().splitlines() == [str(tmp_path / "step_1")]


def test_hanging_validator_is_killed_with_all_it_started(tmp_path: Path) -> None:
    (tmp_path / "step_1").write_text("x")
    pids = tmp_path / "pids"
    judge = script(tmp_path / "judge", f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; wait")
    start = time.monotonic()
    view = look(tmp_path, Validator.parse(judge, timeout_s=0.5))
    assert time.monotonic() - start < 30
    assert view.complete == ()
    assert view.skipped[0].reason == "the validator took longer than 0.5 s"
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), 5)  # type: ignore[misc]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("text", ["/nowhere/judge", "{judge}", "sh -c 'exit 127'"])
def test_validator_that_cannot_run_is_an_error_not_an_empty_view(tmp_path: Path, text: str) -> None:
    (tmp_path / "step_1").write_text("x")
    (tmp_path / "judge").write_text("#!/bin/sh\n")
    view = look(tmp_path, Validator.parse(text.replace("{judge}", str(tmp_path / "judge"))))
    assert "cannot be run" in (view.error or "")
    assert view.complete == ()


def test_child_gives_the_same_view(tmp_path: Path) -> None:
    files.dcp(tmp_path / "step_1")
    files.dcp(tmp_path / "step_2")
    files.cut(tmp_path / "step_2" / ".metadata")
    view = run_child(CheckpointConfig(str(tmp_path)))
    assert view == scan(str(tmp_path))
    assert [found.step for found in view.complete] == [1]
    assert run_child(CheckpointConfig(str(tmp_path / "nothing"))).missing


def test_child_with_every_setting(tmp_path: Path) -> None:
    for name in ("-s1", "-s2"):
        (tmp_path / name).write_text("x")
    config = CheckpointConfig(str(tmp_path), "custom", r"-s(?P<step>\d)", "test -f", 5.0)
    check(config)
    assert [found.step for found in run_child(config).complete] == [2, 1]


def test_unreadable_ones_are_named(tmp_path: Path, unprivileged: Unprivileged) -> None:
    root = unprivileged.home / "ckpt"
    files.dcp(root / "step_1")
    files.dcp(root / "step_2")
    for path, mode in ((root / "step_2", 0), (root / "step_1", 0o755), (root, 0o755)):
        path.chmod(mode)
    try:
        view = run_child(CheckpointConfig(str(root)), unprivileged)
    finally:
        (root / "step_2").chmod(0o755)
    assert [found.step for found in view.complete] == [1]
    assert "may not be read by this user" in view.skipped[0].reason


def test_child_has_bounded_memory(tmp_path: Path) -> None:
    # LONG_BINPUT with a huge index: the memo of the C unpickler grows to it, unless something holds it.
    path = files.dcp(tmp_path / "step_1")
    (path / ".metadata").write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
    files.dcp(tmp_path / "step_0")
    view = run_child(CheckpointConfig(str(tmp_path)))
    assert [found.step for found in view.complete] == [0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CheckpointConfig("/tmp", "onnx"), "unknown checkpoint format 'onnx'"),
        (CheckpointConfig("/tmp", "custom"), "needs --checkpoint-pattern or --checkpoint-validator"),
        (CheckpointConfig("/tmp", "auto", "("), "not a regular expression"),
        (CheckpointConfig("/tmp", "auto", None, ""), "is empty"),
    ],
)
def test_wrong_settings(config: CheckpointConfig, expected: str) -> None:
    with pytest.raises(ValueError, match=expected.replace("(", r"\(")):
        check(config)
    done = subprocess.run(command(sys.executable, config), capture_output=True, timeout=30, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_output_that_is_none() -> None:
    assert "gave no view" in (read_view("/d", b"").error or "")
    assert "gave no view" in (read_view("/d", b"[1]").error or "")
    assert read_view("/d", b"", "took longer than 65 s").error == "took longer than 65 s"
    view = json.dumps(View("/d", missing=True).as_offer()).encode()
    assert read_view("/d", view).missing
    assert read_view("/d", b"a warning\n" + view + b"\nanother\n").missing
    assert read_view("/d", b"Traceback\nMemoryError\n", "ended with code 1").error == "ended with code 1: MemoryError"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("os.write(2, b'no memory\\n'); os._exit(3)", "the look at it ended with code 3: no memory"),
        ("signal.pause()", "the look at it did not end within 0.2 s"),
    ],
)
def test_a_look_that_comes_to_nothing_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import os, signal\n{code}\n")
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    resume = Resume(
        CheckpointConfig(str(tmp_path), scan_timeout_s=0.1),
        {**os.environ, "PYTHONPATH": str(tmp_path)},
        lambda name, **fields: None,
    )
    offer = asyncio.run(resume.offers(()))["checkpoints"]
    assert View.from_offer(offer).error == problem
    assert not bystanders.PIDS


def test_nothing_of_torch_is_imported(tmp_path: Path) -> None:
    files.torch_file(tmp_path / "ckpt_1.pt")
    code = "import sys; from ftlaunch.launcher.checkpoints.__main__ import main; main(sys.argv[1:]); " + (
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'grpc', 'psutil'}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=os.sep)
    assert done.stdout.splitlines()[1] == "[]"
    assert "ckpt_1.pt" in done.stdout
