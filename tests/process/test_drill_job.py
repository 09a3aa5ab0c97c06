"""``ftctl drill KIND``: one fault in a job that runs already."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support.jobs import Job, Launcher
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "examples" / "drill" / "train_tiny.py"
pytestmark = [pytest.mark.slow]


@pytest.fixture
def job(ftlaunch: Launcher, tmp_path: Path) -> Job:
    """A job of two ranks that goes on for ever."""
    return begin(ftlaunch, tmp_path)


def begin(ftlaunch: Launcher, tmp_path: Path, env: dict[str, str | None] | None = None) -> Job:
    arguments = ("--save-in", tmp_path / "saved", "--step-s", "0.01", "--steps", "1000000", "--save-every", "5")
    started = ftlaunch("--nproc-per-node", "2", "--hang-floor", "2s", TINY, *arguments, env=env)
    wait_until(lambda: started.events("training_resumed"), 30, "training")
    return started


def hit(ftctl: Launcher, job: Job, kind: str, *arguments: str) -> Job:
    return ftctl("drill", kind, *arguments, "--run", str(job.run_dir))


def result(drill: Job, code: int = 0) -> dict[str, Any]:
    assert drill.wait(60) == code, drill.err
    shape: dict[str, Any] = json.loads(drill.out)
    return shape


def test_a_rank_is_killed_at_a_step(ftctl: Launcher, job: Job) -> None:
    shape = result(hit(ftctl, job, "kill", "--rank", "1", "--at-step", "60", "--margin", "5s", "--json"))
    (fault,) = shape["faults"]
    assert fault["ok"] and fault["blamed"] == 1 and fault["struck_at_step"] >= 60
    assert job.events("fault_injected")[0]["kind"] == "kill"
    assert job.incidents()[0]["cause"]["reason"] == "was killed by SIGKILL"


def test_again_and_again(ftctl: Launcher, job: Job) -> None:
    arguments = ("--rank", "0", "--every", "400ms", "--times", "2", "--margin", "5s", "--json")
    shape = result(hit(ftctl, job, "kill", *arguments))
    assert [fault["ok"] for fault in shape["faults"]] == [True, True]
    shape = result(
        hit(ftctl, job, "kill", "--rank", "1", "--after-steps", "5", "--times", "2", "--margin", "5s", "--json")
    )
    assert [fault["generation"] for fault in shape["faults"]] == [2, 3]


def test_what_needs_no_help_of_the_rank_works_in_any_job(ftctl: Launcher, job: Job) -> None:
    stop = result(hit(ftctl, job, "stop", "--rank", "0", "--after", "100ms", "--margin", "5s", "--json"))
    assert stop["ok"] and "is stopped" in stop["faults"][0]["reason"]
    full = result(hit(ftctl, job, "disk-full", "--rank", "1", "--json"))
    assert full["ok"] and "File too large" in full["faults"][0]["reason"]


def test_what_needs_it_is_refused_unless_the_job_was_started_for_it(
    ftctl: Launcher, ftlaunch: Launcher, job: Job, tmp_path: Path
) -> None:
    refused = hit(ftctl, job, "exception", "--rank", "0")
    assert refused.wait(20) == 1 and "FTLAUNCH_DRILLS=DIRECTORY in its environment" in refused.err
    other = begin(ftlaunch, tmp_path / "other", {"FTLAUNCH_DRILLS": str(tmp_path / "board")})
    shape = result(hit(ftctl, other, "exception", "--rank", "0", "--at-step", "40", "--margin", "5s", "--json"))
    assert shape["ok"] and shape["faults"][0]["reason"].startswith("ftlaunch.heartbeat.drill.DrillFault: ")
    shape = result(
        hit(ftctl, other, "kill", "--rank", "1", "--after-steps", "20", "--times", "2", "--margin", "5s", "--json")
    )
    assert [fault["ok"] for fault in shape["faults"]] == [True, True]
    spin = result(hit(ftctl, other, "spin", "--rank", "0", "--after", "1s", "--margin", "10s", "--json"))
    assert spin["ok"] and spin["faults"][0]["detected_s"] > 1
    assert list((tmp_path / "board" / "faults").iterdir()) == []


REFUSALS: tuple[tuple[str, tuple[str, ...], int, str], ...] = (
    ("kill", ("--rank", "2"), 1, "there is no rank 2 on this node, only 0 to 1"),
    ("agent-kill", ("--node", "1"), 1, "this is not node 1"),
    ("etcd-stop", (), 1, "ftctl drill run --nodes 2"),
    ("net-cut", ("--node", "0"), 1, "ftctl drill run --nodes 2"),
    ("kill", (), 2, "--rank"),
    ("kill", ("--rank", "0", "--at-step", "5", "--after", "1s"), 2, "only one of step, after_steps and after"),
)


def test_refusals(ftctl: Launcher, job: Job) -> None:
    for kind, arguments, code, complaint in REFUSALS:
        refused = hit(ftctl, job, kind, *arguments)
        assert refused.wait(20) == code and complaint in refused.err
        assert refused.err.startswith("error: ") and refused.err.count("\n") == 1
    assert not job.events("fault_injected")


def test_what_was_armed_is_taken_back_on_interruption(ftctl: Launcher, job: Job) -> None:
    drill = hit(ftctl, job, "kill", "--rank", "0", "--after", "3s")
    drill.wait_for_output("armed kill of rank 0, after 3 s")
    drill.signal(signal.SIGINT)
    assert drill.wait(20) == 130 and "taken back" in drill.err
    # A later one comes, the earlier one never does.
    shape = result(hit(ftctl, job, "kill", "--rank", "1", "--after", "4s", "--margin", "5s", "--json"))
    assert shape["ok"] and [event["rank"] for event in job.events("fault_injected")] == [1]


def test_arm_and_leave(ftctl: Launcher, job: Job) -> None:
    drill = hit(ftctl, job, "kill", "--rank", "0", "--after", "100ms", "--no-wait")
    assert drill.wait(20) == 0 and drill.out == ""
    wait_until(lambda: len(job.events("training_resumed")) == 2, 20, "the next generation")


@pytest.mark.parametrize("kind", ["agent-kill", "node-loss"])
def test_with_the_agent_everything_goes(ftctl: Launcher, job: Job, kind: str) -> None:
    shape = result(hit(ftctl, job, kind, "--at-step", "30", "--json"))
    assert shape["ok"] and shape["left_over"] == [] and job.wait(10) == -9
    wait_until(lambda: not job.processes(), 5, "nothing of the job is left")
