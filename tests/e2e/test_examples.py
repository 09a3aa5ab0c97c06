"""The examples and the reference workload under ftlaunch: faults on the way, all steps done, exit code 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench_lib import recovery
from support.jobs import Launcher

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_ddp_example_survives_its_own_crash(ftlaunch: Launcher, tmp_path: Path) -> None:
    options = ("--checkpoint", tmp_path / "model.pt", "--steps", "60", "--save-every", "20", "--step-s", "0")
    job = ftlaunch("--nproc-per-node", "2", ROOT / "examples" / "train_ddp.py", *options, "--crash-at", "30")
    assert job.wait(200) == 0, job.err
    assert "killing myself at step 30" in job.out
    assert job.out.count("resuming after step 20") == 2
    assert "step 60: " in job.out
    explain = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "explain", str(job.run_dir)]
    shown = subprocess.run(explain, capture_output=True, text=True)
    assert shown.returncode == 0 and "was killed by SIGKILL" in shown.stdout and " in all" in shown.stdout


def test_fsdp_example_goes_on_with_another_number_of_ranks(ftlaunch: Launcher, tmp_path: Path) -> None:
    script, options = ROOT / "examples" / "train_fsdp_dcp.py", ("--checkpoint-dir", tmp_path / "saved", "--step-s", "0")
    first = ftlaunch("--nproc-per-node", "2", script, *options, "--steps", "20", "--save-every", "10")
    assert first.wait(200) == 0, first.err
    (tmp_path / "saved" / "step-30").mkdir()
    second = ftlaunch("--nproc-per-node", "1", script, *options, "--steps", "25", "--save-every", "10")
    assert second.wait(200) == 0, second.err
    assert f"resuming from {tmp_path / 'saved' / 'step-20'}" in second.out
    assert (tmp_path / "saved" / "step-25" / ".metadata").is_file()


def test_drill_with_three_faults_does_all_steps(ftlaunch: Launcher, tmp_path: Path) -> None:
    settings = {
        "DRILL_OUT": str(tmp_path),
        "DRILL_STEPS": "80",
        "DRILL_STEP_S": "0.01",
        "DRILL_CKPT_EVERY": "10",
        "DRILL_FAULTS": "15:kill,35:raise,55:kill",
    }
    job = ftlaunch("--nproc-per-node", "2", ROOT / "tests" / "workloads" / "train_ddp.py", env=settings)
    assert job.wait(250) == 0, job.err
    story = recovery.events(tmp_path)
    assert recovery.done(story) == {0, 1}
    found = recovery.recoveries(story)
    assert [each.kind for each in found] == ["kill", "raise", "kill"]
    starts = [event["step"] for event in story if event["event"] == "start" and event["rank"] == 0]
    assert starts == [0, 10, 30, 50]
    assert len(job.incidents()) == 3
