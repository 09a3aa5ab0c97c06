"""The failure report, incidents and torch's error files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.heartbeat.watching.verdicts import Progress, rank_ranges
from ftlaunch.launcher.decision.events import Failure, FailureKind
from ftlaunch.launcher.journal.errorfile import ErrorFile, parent_shape, read_error_file, write_parent_error_file
from ftlaunch.launcher.journal.failure_report import (
    FailureReport,
    clean,
    describe_code,
    explain_exit_code,
    render,
)
from ftlaunch.launcher.journal.incident import (
    FailureCause,
    Incident,
    Moment,
    RankEnd,
    cause_of,
    read_incidents,
    write_incident,
)

KILLED = FailureCause("signal", "killed by SIGKILL", 1, 1, 4711, "node-a", 100.0, -9, step=75)
RAISED = FailureCause(
    "exception", "ValueError: boom", 3, 1, 12, "node-b", 5.0, 1, "ValueError", "boom", "Traceback …\nValueError: boom\n"
)


def report(cause: FailureCause = KILLED, **changes: object) -> FailureReport:
    base = FailureReport("train.py", "job-7", 2, 1, cause, 137, "restarts are used up", logs="/logs/2", records="/run")
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_report_names_the_first_failure_and_what_follows_from_it() -> None:
    text = render(report(stderr_tail=[b"last words \xff", b"\x1b[31mred\x1b[0m\x07"]))
    assert "train.py FAILED" in text
    assert "Root Cause (first observed failure):" in text
    assert "rank      : 1 (local_rank: 1)" in text
    assert "host      : node-a" in text and "pid       : 4711" in text and "step      : 75" in text
    assert "killed by SIGKILL (signal 9)" in text
    assert "last 2 lines of its stderr:\n    last words \ufffd\n    red\\x07" in text
    assert "exit code   : 137: 128 + 9, because rank 1 was ended by SIGKILL" in text
    assert "logs        : /logs/2" in text and "records     : /run" in text
    assert "job job-7, generation 2, 1 restart\n" in text


def test_a_traceback_takes_the_place_of_stderr() -> None:
    text = render(report(RAISED, stderr_tail=[b"noise"]))
    assert "  traceback :\n    Traceback …\n    ValueError: boom" in text
    assert "noise" not in text


def test_torchs_error_file_is_used_when_there_are_no_last_words() -> None:
    error = ErrorFile("/logs/error.json", "RuntimeError: x", "Traceback of record\nRuntimeError: x")
    text = render(report(error_file=error, stderr_tail=[b"noise"]))
    assert "error_file: /logs/error.json" in text and "Traceback of record" in text and "noise" not in text


def test_an_error_file_without_traceback_does_not_hide_stderr() -> None:
    text = render(report(error_file=ErrorFile("/e", '(not valid JSON) {"mess'), stderr_tail=[b"Segmentation fault"]))
    assert '{"mess' in text and "Segmentation fault" in text


def test_a_silent_death_is_called_so() -> None:
    assert "it wrote nothing to stderr" in render(report())


def test_who_failed_too_and_who_was_stopped() -> None:
    ends = [
        RankEnd(1, 1, "node-a", 4711, -9, 100.0),
        RankEnd(2, 2, "node-a", 4712, -6, 100.0125),
        RankEnd(0, 0, "node-a", 4710, -9, 100.02, stopped_by_launcher=True, how="SIGKILL"),
        RankEnd(3, 3, "node-a", 4713, -9, 100.03, stopped_by_launcher=True, how="SIGKILL"),
        RankEnd(4, 4, "node-a", 4714, 0, 90.0),
    ]
    text = render(report(ends=ends))
    assert "rank 2 (local_rank: 2) on node-a, pid 4712: killed by SIGABRT (signal 6), 12.5 ms later" in text
    assert "Stopped by the launcher (not failures):\n  ranks 0, 3 (SIGKILL)" in text
    assert "4714" not in text


def test_a_thousand_ranks_fit_on_a_screen() -> None:
    ends = [RankEnd(rank, rank % 8, f"node-{rank // 8}", rank, -6, 100 + rank / 1e4) for rank in range(0, 1000, 2)]
    ends += [RankEnd(rank, rank % 8, exit_code=-9, stopped_by_launcher=True, how="SIGKILL") for rank in range(2000)]
    text = render(report(ends=ends, stderr_tail=[b"x" * 2000] * 50))
    assert "and 492 more: ranks 16, 18" in text
    assert "ranks 0, 2-1999 (SIGKILL)" in text
    assert len(text.splitlines()) < 110
    assert max(map(len, text.splitlines())) < 700


def test_a_long_traceback_keeps_both_ends() -> None:
    cause = replace(RAISED, traceback="\n".join(f"line {number}" for number in range(100_000)))
    lines = render(report(cause)).splitlines()
    assert "    line 0" in lines and "    line 99999" in lines
    assert "    … 99880 lines left out …" in lines
    assert len(lines) < 200


def test_a_failure_without_a_rank_is_reported_too() -> None:
    text = render(report(FailureCause("peer", "node-c left", host="node-a"), exit_code=69))
    assert "reason    : node-c left" in text
    assert "rendezvous could not be reached" in text
    assert "stderr" not in text


@pytest.mark.parametrize(
    ("code", "cause", "meaning"),
    [
        (137, KILLED, "128 + 9, because rank 1 was ended by SIGKILL"),
        (1, RAISED, "the code that rank 3 ended with"),
        (76, RAISED, "do not requeue"),
        (143, RAISED, "stopped by SIGTERM"),
        (75, replace(RAISED, exit_code=75), "the code that rank 3 ended with"),
        (167, replace(KILLED, exit_code=-39), "SIGRTMIN+5"),
    ],
)
def test_the_exit_code_is_explained(code: int, cause: FailureCause, meaning: str) -> None:
    assert meaning in explain_exit_code(code, cause)


@pytest.mark.parametrize(
    ("cause", "meaning"),
    [
        (replace(RAISED, exit_code=3), "as torchrun (--torchrun-exit-codes); the failed rank ended with 3"),
        (KILLED, "as torchrun (--torchrun-exit-codes); the failed rank was killed by SIGKILL"),
        (FailureCause("peer", "node-c left", host="node-a"), "as torchrun (--torchrun-exit-codes)"),
        (RAISED, "the code that rank 3 ended with"),
    ],
)
def test_torchruns_exit_code_is_explained(cause: FailureCause, meaning: str) -> None:
    assert f"exit code   : 1: {meaning}\n" in render(report(cause, exit_code=1, as_torchrun=True))


def test_codes_are_described() -> None:
    assert describe_code(3) == "exit code 3"
    assert describe_code(-11) == "killed by SIGSEGV (signal 11)"
    assert describe_code(None) == "end not known"


def test_rank_ranges() -> None:
    assert rank_ranges([]) == ""
    assert rank_ranges([5, 0, 1, 2, 2]) == "0-2, 5"


def test_terminal_controls_are_removed() -> None:
    assert clean("a\x1b[2Jb\x1b]0;title\x07c\rd\te") == "abc\\x0dd\te"


FAILURE = Failure(
    FailureKind.EXCEPTION, 4, 10.0, "ValueError: boom", 1, None, LastWords("ValueError", "boom", "tb", "f.py:1", step=7)
)


def test_the_cause_of_a_failure() -> None:
    cause = cause_of(FAILURE, rank=9, pid=1, host="h", evidence=("stack",))
    assert (cause.kind, cause.rank, cause.local_rank, cause.exit_code, cause.step) == ("exception", 9, 1, 1, 7)
    stepless = replace(FAILURE, words=None, exit_code=-9, progress=Progress(step=5))
    assert (cause_of(stepless).exit_code, cause_of(stepless).step) == (-9, 5)


def test_incidents_can_be_written_and_read_back(tmp_path: Path) -> None:
    timeline = (Moment("failed", 10.0), Moment("failure_detected", 10.004), Moment("workers_stopped", 10.05))
    incident = Incident(4, cause_of(FAILURE, evidence=("a", "b")), "restart", "budget left", "now", (), timeline)
    assert write_incident(tmp_path / "incidents", incident).name == "004.json"
    complete = replace(incident, consequences=(RankEnd(0, 0, "h", 5, -9, 10.04, True, "SIGKILL"),))
    path = write_incident(tmp_path / "incidents", complete)
    shape = json.loads(path.read_text())
    assert shape["phases_s"] == {"failure_detected": 0.004, "workers_stopped": 0.046}
    (tmp_path / "incidents" / "005.json").write_text("{")
    (tmp_path / "incidents" / "006.json").write_text('{"version": 99}')
    (tmp_path / "incidents" / "007.json").write_text("[]")
    assert read_incidents(tmp_path / "incidents") == [complete]
    assert read_incidents(tmp_path / "absent") == []


def test_a_huge_traceback_does_not_make_a_huge_incident(tmp_path: Path) -> None:
    cause = replace(RAISED, traceback="x" * 50_000_000)
    assert write_incident(tmp_path, Incident(0, cause, "stop", "")).stat().st_size < 100_000


RECORDED = {"message": {"message": "E: x", "extraInfo": {"py_callstack": "tb", "timestamp": "1"}}}


@pytest.mark.parametrize(
    ("content", "message", "traceback"),
    [
        (json.dumps(RECORDED).encode(), "E: x", "tb"),
        (b'{"message": "plain"}', "plain", ""),
        (b'{"message": {"message": null, "extraInfo": 3}}', "None", ""),
        (b'{"mess', '(not valid JSON) {"mess', ""),
        (b"\xff\xfe", "(not valid JSON) \ufffd\ufffd", ""),
        (b"[1]", "[1]", ""),
        (b"{}", "", ""),
        (b"[" * 2_000_000, "(not valid JSON) " + "[" * 2000, ""),
    ],
)
def test_error_files_of_any_kind(tmp_path: Path, content: bytes, message: str, traceback: str) -> None:
    (tmp_path / "error.json").write_bytes(content)
    error = read_error_file(tmp_path / "error.json")
    assert error is not None
    assert (error.message, error.traceback) == (message, traceback)


def test_no_error_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b" \n")
    os.mkfifo(tmp_path / "fifo")
    for path in (None, tmp_path / "absent", tmp_path / "empty", tmp_path / "fifo", tmp_path):
        assert read_error_file(path) is None


def test_the_parents_error_file_is_the_ranks_with_the_code() -> None:
    shape = parent_shape(KILLED, ErrorFile("/e", "E: x", "tb", RECORDED), "")
    assert shape["message"] == {**RECORDED["message"], "errorCode": -9}
    assert "errorCode" not in RECORDED["message"]


@pytest.mark.parametrize(
    ("own", "message"),
    [(None, "ValueError: boom"), (ErrorFile("/e", "(not valid JSON)"), "ValueError: boom")],
)
def test_the_parents_error_file_is_made_up_when_there_is_none(own: ErrorFile | None, message: str) -> None:
    shape = parent_shape(RAISED, own, "2026-01-02T03:04:05+00:00")
    assert shape["message"]["message"] == message
    assert shape["message"]["errorCode"] == 1
    assert shape["message"]["extraInfo"] == {"py_callstack": RAISED.traceback, "timestamp": "1767323045"}


def test_writing_the_parents_error_file(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("old")
    assert write_parent_error_file(str(path), KILLED, None, "") == ""
    assert json.loads(path.read_text())["message"]["message"] == "killed by SIGKILL"
    assert [entry.name for entry in tmp_path.iterdir()] == ["error.json"]
    problem = write_parent_error_file(str(tmp_path / "absent" / "e"), KILLED, None, "")
    assert "No such file" in problem and "\n" not in problem
