"""``ftctl explain``: the story of a run, and what would have helped, from its records alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.launcher.ftctl.__main__ import run as run_ftctl
from ftlaunch.launcher.history.goodput import Loss, Use
from ftlaunch.launcher.history.hints import hints
from ftlaunch.launcher.history.model import Generation
from ftlaunch.launcher.journal.incident import FailureCause, Incident, RankEnd, write_incident
from support.event_logs import EventLogWriter, Fault, write_run

STARTED = Generation(1, started_at=5.0, slots=2, warm=2)


def loss(
    kind: str = "exit",
    reason: str = "exited with code 3",
    decision: str = "restart",
    phases: dict[Use, float] | None = None,
    **cause: Any,
) -> Loss:
    told = FailureCause(kind, reason, rank=1, **cause)
    incident = Incident(0, told, decision, cause.get("decision_reason", "restart 1"))
    return Loss(incident, kind, 4.0, phases or {}, 0.5, 0, {})


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("reason", "flag"),
    [
        ("is stopped (state T) and was not continued for 1.2 s", "--ignore-stopped"),
        ("has been in uninterruptible sleep (state D) for 60 s", "--dstate-timeout"),
        ("is still there 300 s after rank 0 ended with 0, without progress for 300 s", "--exit-barrier-timeout"),
        ("made no first step, and showed no other sign of its start for 1800 s", "--init-timeout"),
        ("made no step for 30.0 s; the limit is 30.0 s, as its longest silence so far was 0.2 s", "--hang-floor"),
        (
            "has been in section eval without a step for 31 s; the limit is 30.0 s (configured)",
            "--section-timeout eval",
        ),
    ],
)
def test_a_stall_names_its_flag(reason: str, flag: str) -> None:
    assert flag in only(hints(loss("stall", reason), STARTED))


def test_a_stall_that_was_seen_late_says_how_to_see_it_earlier() -> None:
    found = hints(loss("stall", "made no step for 600 s; the limit is 600 s (default)"), STARTED)
    assert len(found) == 2 and "earlier than after 600 s: a lower --hang-timeout" in found[1]


def test_what_the_rank_said_last_is_understood() -> None:
    said = loss("exception", "RuntimeError", exception="RuntimeError", message="DataLoader worker is killed by signal")
    assert "num_workers" in only(hints(said, STARTED))
    wrote = "RuntimeError: unable to write to file </torch_12_3>"
    assert "--shm-size" in only(hints(loss("exit", exit_code=1), STARTED, stderr=wrote))


def test_a_foreign_kill_without_evidence_says_where_to_look() -> None:
    killed = loss("signal", "was killed by SIGKILL", exit_code=-9)
    assert "dmesg" in only(hints(killed, STARTED))
    proved = loss("signal", "x", exit_code=-9, evidence=("OOM-killed: cgroup memory limit 2 GiB",))
    assert hints(proved, STARTED) == []


def test_the_place_of_an_exception_is_named() -> None:
    raised = loss("exception", "ValueError", exception="ValueError", message="no", place="train.py:12")
    assert only(hints(raised, STARTED)) == "the script's own fault, at train.py:12"


@pytest.mark.parametrize("flag", ["--max-restarts", "--restart-budget", "--fatal-exit-codes"])
def test_the_flag_that_ended_the_job_is_named(flag: str) -> None:
    ended = loss(decision="stop")
    ended = replace(ended, incident=replace(ended.incident, decision_reason=f"no more ({flag} 3)"))
    assert flag in only(hints(ended, None))


def test_slow_phases_name_their_flags() -> None:
    slow = loss("request", phases={Use.STOPPED: 1.5, Use.RECLAIMED: 4.0, Use.RESUMED: 9.0})
    found = hints(slow, replace(STARTED, warm=0))
    assert [next(word for word in ("--kill-grace", "GPU", "--standby") if word in hint) for hint in found] == [
        *("--kill-grace", "GPU", "--standby")
    ]
    assert hints(slow, replace(STARTED, warm=2)) == found[:2]


def test_repeated_steps_ask_for_checkpoints() -> None:
    again = replace(loss("request"), repeated_steps=90, by_use={Use.REPEATED: 9.0, Use.STARTED: 1.0})
    assert "--checkpoint-dir" in only(hints(again, STARTED))
    assert "save more often" in only(hints(again, replace(STARTED, resume_from="/ck/100")))


# -- the whole command ---


def event(name: str, monotonic: float, **fields: Any) -> str:
    return json.dumps({"time": "2026-01-02T03:04:05.000000+00:00", "monotonic": monotonic, "event": name, **fields})


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """Rank 1 dies, rank 0 follows; the second generation succeeds."""
    lines = [
        event("job_started", 10.0),
        event("rendezvous_completed", 10.0, generation=0, world_size=3, nodes=1, group_rank=0),
        event("workers_started", 10.1, generation=0, pids=[1, 2, 3], warm=0),
        event("progress", 30.0, generation=0, step=75, beating_since=12.1, last_beat=29.9),
        event("failure_detected", 30.011, generation=0, rank=1, reason="exited with code 1", kind="exit", at=30.0),
        event("decided", 30.012, generation=0, rank=1, reason="restart 1: it reached step 75", decision="restart"),
        event("workers_stopped", 30.1, generation=0),
        event("gpu_reclaimed", 30.1, generation=0),
        event(
            "rendezvous_completed",
            30.05,
            generation=1,
            world_size=3,
            nodes=1,
            group_rank=0,
            resume_from="/ck/\x1b50",
            resume_step=50,
        ),
        event("workers_started", 30.12, generation=1, pids=[4, 5, 6], warm=3),
        event("training_resumed", 30.5, generation=1),
        event("progress", 60.0, generation=1, step=200, beating_since=30.5, last_beat=59.0),
        event("job_finished", 60.0, generation=1, reason="all ranks succeeded", exit_code=0),
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    facts = {"id": "one", "host": "node-a", "command": ["train.py", "--lr", "1"], "finished": True, "exit_code": 0}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    cause = FailureCause(
        "exit",
        "exited with code 1",
        rank=1,
        local_rank=1,
        pid=2,
        at=30.0,
        exit_code=1,
        step=75,
        evidence=("stack of rank 1:\n" + "\n".join(f"  frame {i}" for i in range(30)),),
    )
    ends = (
        RankEnd(0, 0, exit_code=1, at=30.05),
        RankEnd(1, 1, exit_code=1, at=30.0),
        RankEnd(2, 2, exit_code=-9, at=30.06, stopped_by_launcher=True, how="SIGKILL"),
    )
    write_incident(
        tmp_path / "incidents", Incident(0, cause, "restart", "restart 1: it reached step 75", consequences=ends)
    )
    (tmp_path / "logs" / "0").mkdir(parents=True)
    (tmp_path / "logs" / "0" / "1.err").write_text("Traceback\nOSError: [Errno 28] No space left on device\n")
    return tmp_path


def explain(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run_ftctl(["explain", *arguments]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_a_failure_without_a_rank_is_told_by_its_reason_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = Fault(50, kind="peer", reason="node b failed: rank 3 exited with code 1", local_rank=None)
    run = write_run(tmp_path / "run", EventLogWriter().run([fault], 100))
    assert "s: node b failed: rank 3 exited with code 1\n" in explain(capsys, str(run))


def test_a_story_is_told_in_order(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explain(capsys, str(story))
    lines = text.splitlines()
    assert lines[0] == "run one: train.py --lr 1"
    assert lines[1] == "started 2026-01-02 03:04:05 UTC on node-a"
    wanted = [
        "generation 0: 3 ranks started after 0.10 s; first beat 2.0 s later, came to step 75",
        "  after 20.0 s: rank 1 (pid 2) exited with code 1, at step 75",
        "    stack of rank 1:",
        "    … 19 more lines: --full",
        "    then rank 0: exit code 1, 50 ms later",
        "    stopped by ftlaunch: rank 2",
        "  decided to restart: restart 1: it reached step 75",
        "  hint: free space where checkpoints and logs go; fewer checkpoints kept",
        "generation 1: 3 ranks started after 20.1 s, 3 from standbys; first beat 0.38 s later, came to step 200",
        "  resumed from /ck/\\x1b50 (step 50)",
        "the job ended after 50.0 s with code 0: all ranks succeeded",
    ]
    positions = [lines.index(line) for line in wanted]
    assert positions == sorted(positions)
    recovery = next(line for line in lines if line.startswith("  recovery: "))
    assert "noticed 11 ms" in recovery and "first beat 0.38 s; 0.50 s in all" in recovery
    assert "\x1b" not in text


def test_full_evidence(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "frame 29" not in explain(capsys, str(story))
    assert "frame 29" in explain(capsys, str(story), "--full")


def test_only_the_last_generations(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explain(capsys, str(story), "--last", "1")
    assert "generation 1:" in text and "generation 0:" not in text


def test_a_story_for_programs(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = json.loads(explain(capsys, str(story), "--json"))
    (incident,) = shape["incidents"]
    assert (incident["rank"], incident["kind"], incident["decision"]) == (1, "exit", "restart")
    assert incident["recovery_s"] == pytest.approx(0.5) and incident["hints"]
    assert shape["exit_code"] == 0 and shape["finished"] is True


def test_a_run_that_was_cut_off(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = (story / "events.jsonl").read_text().splitlines()
    (story / "events.jsonl").write_text("\n".join(events[:4]) + "\n" + events[4][:30])
    (story / "run.json").write_text("{")
    assert "its agent vanished 20.0 s after the start, or later" in explain(capsys, str(story))


def test_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert explain(capsys, str(tmp_path), code=1).startswith("error: cannot read the events of ")
