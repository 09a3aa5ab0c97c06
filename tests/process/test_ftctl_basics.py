"""``ftctl runs`` and ``ftctl events`` as a user calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftlaunch.launcher.ftctl import _runs
from ftlaunch.launcher.ftctl.__main__ import run as run_ftctl
from ftlaunch.launcher.journal.records import EventLog
from ftlaunch.launcher.journal.rundir import RunDir, candidate_roots, open_run_dir, owner_facts, this_owner
from ftlaunch.launcher.secrecy import redact

FTCTL = [sys.executable, "-m", "ftlaunch.launcher.ftctl"]


Ftctl = Callable[..., str]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # Without the last resort, /tmp, where runs of other users of this machine's tests may be.
    monkeypatch.setattr(_runs, "candidate_roots", lambda environment: candidate_roots(environment)[:1])
    return tmp_path


@pytest.fixture
def ftctl(state: Path, capfd: pytest.CaptureFixture[str]) -> Ftctl:
    def call(*arguments: str, code: int = 0) -> str:
        assert run_ftctl(list(arguments)) == code
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        assert not (code and out)
        return err if code else out

    return call


def make_run(
    state: Path, job: str, exit_code: int | None, command: tuple[str, ...] = ("train.py",), reason: str = "no"
) -> RunDir:
    run, _ = open_run_dir(None, {"XDG_STATE_HOME": str(state)}, job)
    assert run is not None
    facts = {"id": run.run_id, "command": redact(command), **owner_facts(this_owner("host"))}
    run.describe(facts, pytest.fail)
    log = EventLog(run.events, pytest.fail)
    log.write("job_started")
    log.write("workers_started", generation=0)
    log.write("failure_detected", generation=0, rank=0, reason="RuntimeError: lost rank 1", step=75)
    log.write("cause_corrected", generation=0, rank=1, reason="killed by\nSIGKILL \x1b[31m", step=75)
    log.write("workers_started", generation=1)
    if exit_code is not None:
        log.write("job_finished", generation=1, exit_code=exit_code, reason=reason)
        run.describe({"finished": True, "exit_code": exit_code}, pytest.fail)
    log.close()
    return run


def test_runs_are_listed_newest_first(state: Path, ftctl: Ftctl) -> None:
    make_run(state, "good", 0)
    make_run(state, "bad", 137, ("train.py", "--key", "s3cret", "x" * 200))
    make_run(state, "stopped", 143)
    make_run(state, "live", None)
    lines = ftctl("runs").splitlines()
    assert lines[0].split() == ["ID", "STATE", "STARTED", "GENERATIONS", "CODE", "COMMAND", "LAST", "CAUSE"]
    rows = {line.split()[1]: line for line in lines[1:]}
    assert set(rows) == {"succeeded", "failed", "stopped", "running"}
    assert "   2             137    train.py --key" in rows["failed"]
    assert "s3cret" not in rows["failed"] and "\x1b" not in rows["failed"]
    assert rows["failed"].rstrip().endswith("killed by SIGKILL [31m")
    started = [line.split()[0] for line in lines[1:]]
    assert [name[:15] for name in started] == sorted((name[:15] for name in started), reverse=True)


def test_runs_as_json(state: Path, ftctl: Ftctl) -> None:
    run = make_run(state, "good", 0)
    (shape,) = json.loads(ftctl("runs", "--json"))
    assert shape["id"] == run.run_id and shape["exit_code"] == 0 and shape["generations"] == 2
    assert shape["command"] == ["train.py"] and shape["path"] == str(run.path)


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (138, "received SIGUSR1", "preempted"),
        (129, "received SIGHUP", "stopped"),
        (138, "death by SIGUSR1, and no restart is allowed (--max-restarts 0)", "failed"),
    ],
)
def test_a_run_that_a_signal_ended_has_not_failed(state: Path, ftctl: Ftctl, code: int, reason: str, said: str) -> None:
    make_run(state, "signalled", code, reason=reason)
    assert json.loads(ftctl("runs", "--json"))[0]["state"] == said


def test_no_runs(state: Path, ftctl: Ftctl) -> None:
    assert ftctl("runs") == ""
    assert json.loads(ftctl("runs", "--json")) == []
    assert ftctl("events", code=1) == "error: there are no runs yet\n"


def test_a_run_whose_agent_vanished_is_lost(state: Path, ftctl: Ftctl) -> None:
    run = make_run(state, "lost", None)
    run.describe({"pid": 2**30}, pytest.fail)
    assert " lost " in ftctl("runs")


def test_a_broken_run_directory_is_still_listed(state: Path, ftctl: Ftctl) -> None:
    run = make_run(state, "broken", 0)
    (run.path / "run.json").write_bytes(b"\xff{")
    run.events.write_bytes(b"\x00\n{}\n")
    assert run.run_id in ftctl("runs")


def test_events_of_the_latest_run(state: Path, ftctl: Ftctl) -> None:
    make_run(state, "good", 0)
    lines = ftctl("events").splitlines()
    assert [line.split()[5] for line in lines] == [
        *("job_started", "workers_started", "failure_detected", "cause_corrected", "workers_started", "job_finished")
    ]
    assert "gen 0   rank 1    cause_corrected      killed by SIGKILL [31m step=75" in lines[3]
    assert "\x1b" not in "".join(lines)


def test_events_can_be_chosen_by_name_and_printed_as_json(state: Path, ftctl: Ftctl) -> None:
    make_run(state, "good", 0)
    output = ftctl("events", "latest", "--json", "--event", "workers_started", "--event", "job_finished")
    events = [json.loads(line) for line in output.splitlines()]
    assert [event["event"] for event in events] == ["workers_started", "workers_started", "job_finished"]
    assert events[-1]["exit_code"] == 0


def test_a_run_is_found_by_name_beginning_and_directory(state: Path, ftctl: Ftctl) -> None:
    run = make_run(state, "good", 0)
    make_run(state, "other", 0)
    expected = ftctl("events", run.run_id)
    assert expected == ftctl("events", run.run_id[:-2]) == ftctl("events", str(run.path))
    assert "no run begins with 'nothing'" in ftctl("events", "nothing", code=1)
    ambiguous = ftctl("events", run.run_id[:4], code=1)
    assert "2 runs begin with" in ambiguous and ambiguous.count("\n") == 1
    several = ftctl("events", str(run.path.parent), code=1)
    assert "holds 2 runs: name one of them" in several and several.count("\n") == 1
    assert json.loads(ftctl("report", "--json", str(run.path.parent)))["exit_code"] == 0


@pytest.mark.parametrize("arguments", [["event"], ["events", "--nonsense"], ["events", "a", "b"], ["runs", "x"]])
def test_wrong_usage_is_one_line_and_code_2(state: Path, ftctl: Ftctl, arguments: list[str]) -> None:
    assert ftctl(*arguments, code=2).count("\n") == 1


def test_a_word_that_is_nearly_a_command(state: Path, ftctl: Ftctl) -> None:
    assert "no such command 'statuss', did you mean status?" in ftctl("statuss", code=2)
    assert "did you mean" not in ftctl("xyz", code=2)


@pytest.mark.parametrize("command", ["status", "dump", "stop", "restart"])
def test_live_commands_take_a_run_with_and_without_the_option(state: Path, ftctl: Ftctl, command: str) -> None:
    run = make_run(state, "done", 0)
    named = ftctl(command, run.run_id, code=1)
    assert named == ftctl(command, "--run", run.run_id, code=1) and run.run_id in named
    assert "one run at a time" in ftctl(command, run.run_id, "--run", "other", code=2)


def test_logs_of_ranks_that_said_nothing(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_run(state, "silent", 0)
    folder = run.path / "logs" / "0"
    folder.mkdir(parents=True)
    for name in ("0.out", "0.err"):
        (folder / name).touch()
    assert run_ftctl(["logs", run.run_id]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"nothing was written to stdout and stderr in generation 0 ({folder})\n")


def test_help_lists_the_commands(state: Path, ftctl: Ftctl) -> None:
    assert "events" in ftctl("--help") and "runs" in ftctl("-h")
    assert "Usage:" in ftctl(code=2)


def test_a_group_without_a_command_shows_its_help(state: Path, ftctl: Ftctl) -> None:
    told = ftctl("drill", code=2).splitlines()
    assert told[0].startswith("Usage: ftctl drill") and "Commands:" in told


def test_an_empty_name_is_no_directory(state: Path, ftctl: Ftctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_run(state, "here", 0).path)
    assert ftctl("explain", "", code=1) == "error: no run begins with ''; see ftctl runs\n"


def test_following_ends_with_the_job(state: Path) -> None:
    run = make_run(state, "live", None)
    with follow(run) as lines:
        assert [next(lines)["event"] for _ in range(5)][-1] == "workers_started"
        log = EventLog(run.events, pytest.fail)
        log.write("training_resumed", generation=1)
        assert next(lines)["event"] == "training_resumed"
        log.write("job_finished", exit_code=0)
        log.close()
        assert [event["event"] for event in lines] == ["job_finished"]


def test_following_ends_when_the_agent_is_gone(state: Path) -> None:
    run = make_run(state, "live", None)
    with follow(run) as lines:
        next(lines)
        run.describe({"pid": 2**30}, pytest.fail)
        assert [event["event"] for event in lines][-1] == "workers_started"


def test_following_a_finished_run_just_prints_it(state: Path, ftctl: Ftctl) -> None:
    run = make_run(state, "done", 0)
    assert ftctl("events", "-f", run.run_id) == ftctl("events", run.run_id)


def test_an_interrupt_ends_following_quietly(state: Path) -> None:
    run = make_run(state, "live", None)
    child = subprocess.Popen([*FTCTL, "events", "-f", run.run_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert b"Traceback" not in err


def test_a_reader_that_leaves_early_is_no_error(state: Path) -> None:
    run = make_run(state, "big", 0)
    log = EventLog(run.events, pytest.fail)
    for number in range(5000):
        log.write("beat", n=number)
    log.close()
    child = subprocess.Popen([*FTCTL, "events", run.run_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == -signal.SIGPIPE


class follow:
    """Runs ``ftctl events -f --json`` and gives its events."""

    def __init__(self, run: RunDir) -> None:
        self.child = subprocess.Popen(
            [*FTCTL, "events", "-f", "--json", run.run_id], stdout=subprocess.PIPE, env={**os.environ}
        )

    def __enter__(self) -> Iterator[dict[str, object]]:
        assert self.child.stdout is not None
        return map(json.loads, self.child.stdout)

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()
