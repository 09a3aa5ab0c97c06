"""Reports of the etcd client, as far as they concern a job that does not use it."""

from __future__ import annotations

from pathlib import Path

from support.jobs import Launcher
from support.scripts import TWO, write


def test_S1_a_broken_client_does_not_disturb_who_needs_none(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The packages are there and cannot be imported, as with a protobuf that does not fit."""
    broken = tmp_path / "broken"
    for name in ("pyetcd", "etcd3", "grpc", "google"):
        (broken / name).mkdir(parents=True)
        (broken / name / "__init__.py").write_text("raise TypeError('Descriptors cannot be created directly')")
    script = write(tmp_path, "if GEN == 0 and RANK: os.kill(os.getpid(), 9)\nif GEN == 0: signal.pause()")
    job = ftlaunch("--standalone", *TWO, "--max-restarts", "1", script, env={"PYTHONPATH": str(broken)})
    assert job.wait(30) == 0, job.err
    assert "Descriptors" not in job.err
