"""A rendezvous that cannot even begin is told in one line."""

from __future__ import annotations

from pathlib import Path

from ftlaunch.launcher.exit_codes import ExitCode
from support.jobs import Launcher

ETCD = ("--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", "localhost:2379", "--rdzv-id", "x")


def test_etcd_without_its_library_is_refused_in_one_line(ftlaunch: Launcher, tmp_path: Path) -> None:
    """As after ``pip install ftlaunch`` without the extra."""
    (tmp_path / "grpc.py").write_text("raise ImportError('not installed')")
    script = tmp_path / "train.py"
    script.touch()
    job = ftlaunch(*ETCD, script, env={"PYTHONPATH": str(tmp_path)})
    assert job.wait(30) == ExitCode.USAGE
    assert "Traceback" not in job.err
    (line,) = [line for line in job.err.splitlines() if "grpcio" in line]
    assert "pip install 'ftlaunch[etcd]'" in line


def test_settings_that_contradict_each_other_are_refused_in_one_line(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    job = ftlaunch(*ETCD, "--rdzv-conf", "node_timeout=5,fence_margin=9", script)
    assert job.wait(30) == ExitCode.USAGE
    assert "Traceback" not in job.err and "fencing margin" in job.err
