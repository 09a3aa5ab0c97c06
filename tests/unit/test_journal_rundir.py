"""Where a run's directory is, who may use it, and how long it stays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.journal import rundir
from ftlaunch.launcher.journal.records import EventLog
from ftlaunch.launcher.journal.retention import prune
from ftlaunch.launcher.journal.rundir import RunDir, candidate_roots, is_running, open_run_dir, owner_facts, this_owner


def open_in(folder: Path, job: str = "job") -> RunDir:
    run, problem = open_run_dir(None, {"XDG_STATE_HOME": str(folder)}, job)
    assert run is not None and problem == ""
    return run


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/ftlaunch/runs"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/ftlaunch/runs"),
        ({"HOME": "/h", "TMPDIR": "/t"}, "/h/.local/state/ftlaunch/runs"),
        ({"TMPDIR": "/var"}, f"/var/ftlaunch-{os.getuid()}/runs"),
        ({"TMPDIR": "/not/there"}, f"/tmp/ftlaunch-{os.getuid()}/runs"),
        ({"TMPDIR": "."}, f"/tmp/ftlaunch-{os.getuid()}/runs"),
        ({}, f"/tmp/ftlaunch-{os.getuid()}/runs"),
    ],
)
def test_candidates_in_order(environment: dict[str, str], first: str) -> None:
    roots = candidate_roots(environment)
    assert str(roots[0]) == first
    assert str(roots[-1]) == f"/tmp/ftlaunch-{os.getuid()}/runs"


def test_a_run_gets_a_private_directory_of_its_own(tmp_path: Path) -> None:
    run = open_in(tmp_path / "state", "my job/ä")
    assert run.path.parent == tmp_path / "state" / "ftlaunch" / "runs"
    assert "-my_job_" in run.run_id
    assert (run.path.parent.stat().st_mode & 0o777) == 0o700


def test_jobs_that_start_at_the_same_moment_do_not_share_a_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(5) as pool:
        runs = list(pool.map(lambda _: open_in(tmp_path / "state"), range(20)))
    assert len({run.path for run in runs}) == 20


def test_what_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run, problem = open_run_dir(None, {"XDG_STATE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}, "job")
    assert run is not None and not problem
    assert run.path.parent.parent == tmp_path / f"ftlaunch-{os.getuid()}"


def test_no_directory_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(rundir, "candidate_roots", lambda environment: [tmp_path / "file" / "runs"])
    run, problem = open_run_dir(None, {}, "job")
    assert run is None
    assert "File exists" in problem and "\n" not in problem


@pytest.mark.parametrize("trap", ["link", "foreign"])
def test_a_shared_tmp_directory_of_our_name_must_be_ours(
    tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid()
    ours = tmp_path / f"ftlaunch-{os.getuid()}"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        ours.symlink_to(tmp_path / "elsewhere")
    else:
        ours.mkdir()
        monkeypatch.setattr(rundir.os, "getuid", lambda: uid + 1)  # type: ignore[attr-defined]
        ours.rename(tmp_path / f"ftlaunch-{os.getuid()}")
    monkeypatch.setattr(rundir, "candidate_roots", lambda environment: [tmp_path / f"ftlaunch-{os.getuid()}" / "runs"])
    run, problem = open_run_dir(None, {}, "job")
    assert run is None and "belongs to another user" in problem


def test_a_named_directory_is_used_as_it_is(tmp_path: Path) -> None:
    run, _ = open_run_dir(str(tmp_path / "a" / "b"), {}, "job")
    assert run is not None and run.path == tmp_path / "a" / "b" and run.root is None


def test_a_named_directory_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--run-dir .*give a directory that can be written"):
        open_run_dir(str(tmp_path / "file"), {}, "job")


def test_a_named_directory_keeps_the_run_before(tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        run, _ = open_run_dir(str(tmp_path), {}, "job")
        assert run is not None and not run.events.exists()
        run.events.write_text(text)
        run.describe({"id": run.run_id, "finished": True}, pytest.fail)
    assert (tmp_path / "events.jsonl").read_text() == "third"
    assert sorted(path.read_text() for path in tmp_path.glob("earlier/*/events.jsonl")) == ["first", "second"]


def test_a_named_directory_in_use_is_refused(tmp_path: Path) -> None:
    run, _ = open_run_dir(str(tmp_path), {}, "job")
    assert run is not None
    run.describe(owner_facts(this_owner("host")), pytest.fail)
    with pytest.raises(UsageError, match="in use by a running ftlaunch"):
        open_run_dir(str(tmp_path), {}, "job")


def test_run_json_is_extended_not_replaced(tmp_path: Path) -> None:
    run = open_in(tmp_path)
    run.describe({"id": "x", "nested": {"path": Path("/x")}}, pytest.fail)
    run.describe({"exit_code": 3}, pytest.fail)
    assert json.loads((run.path / "run.json").read_text()) == {"id": "x", "nested": {"path": "/x"}, "exit_code": 3}
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_run_json_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    RunDir(tmp_path / "gone", "id", None).describe({"a": 1}, warnings.append)
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("changes", "running"),
    [
        ({}, True),
        ({"finished": True}, False),
        ({"starttime": 1}, False),
        ({"pid": 2**30}, False),
        ({"pid": "1"}, False),
        ({"host": "elsewhere", "boot_id": "other"}, True),
        ({"boot_id": "before the reboot"}, False),
        ({"pid_namespace": "pid:[1]"}, False),
    ],
)
def test_whether_the_agent_of_a_run_lives(tmp_path: Path, changes: dict[str, object], running: bool) -> None:
    facts = {**owner_facts(this_owner(os.uname().nodename)), **changes}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert is_running(tmp_path) is running


def test_an_agent_of_another_container_is_known_by_its_lock(tmp_path: Path) -> None:
    facts = {**owner_facts(this_owner("pod-0")), "pid_namespace": "pid:[1]", "id": "x"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    log = EventLog(tmp_path / "events.jsonl", pytest.fail)
    log.write("job_started")
    assert is_running(tmp_path)
    with pytest.raises(UsageError, match="in use by a running ftlaunch"):
        open_run_dir(str(tmp_path), {}, "job")
    log.close()
    assert not is_running(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"pid_namespace": "pid:[1]"}, {"boot_id": "other", "host": "pod-x7f2"}, {"starttime": 1}]
)
def test_a_named_directory_of_a_run_that_was_cut_off_is_taken_and_that_is_said(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """A container that was killed as a whole starts again with the same options, perhaps on another node."""
    before, _ = open_run_dir(str(tmp_path), {}, "job")
    assert before is not None
    before.describe({"id": before.run_id, **owner_facts(this_owner("pod-0")), **changes}, pytest.fail)
    before.events.write_text("first")
    run, note = open_run_dir(str(tmp_path), {}, "job")
    assert run is not None and not run.events.exists()
    assert f"was cut off: its ftlaunch, pid {os.getpid()} on {changes.get('host', 'pod-0')}" in note
    assert (tmp_path / "earlier" / before.run_id / "events.jsonl").read_text() == "first"


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_broken_run_file_is_no_running_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert not is_running(tmp_path)


def test_latest_leads_to_the_newest_run(tmp_path: Path) -> None:
    for _ in range(2):
        run = open_in(tmp_path)
        rundir.point_latest(run)
        assert run.root is not None and (run.root / "latest").resolve() == run.path
        assert {path.name for path in run.root.iterdir() if path.is_symlink()} == {"latest"}


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make_run(number: int, size: int = 0, **facts: object) -> Path:
        run = tmp_path / f"20260101-0000{number:02d}-job-00000{number % 10}"
        run.mkdir()
        (run / "run.json").write_text(json.dumps(facts))
        (run / "logs").mkdir()
        (run / "logs" / "0.out").write_bytes(b"x" * size)
        return run

    return make_run


def test_the_newest_finished_runs_stay(tmp_path: Path, make: Make) -> None:
    runs = [make(number) for number in range(6)]
    (tmp_path / "somebody-elses").mkdir()
    assert prune(tmp_path, keep_runs=2) == 4
    assert [run.exists() for run in runs] == [False] * 4 + [True] * 2
    assert (tmp_path / "somebody-elses").exists()


def test_runs_beyond_the_size_go_the_newest_stays(tmp_path: Path, make: Make) -> None:
    runs = [make(number, size=100_000) for number in range(4)]
    prune(tmp_path, keep_bytes=250_000)
    assert [run.exists() for run in runs] == [False, False, True, True]
    prune(tmp_path, keep_bytes=1)
    assert [run.exists() for run in runs] == [False, False, False, True]


def test_neither_a_running_run_nor_the_current_one_is_removed(tmp_path: Path, make: Make) -> None:
    running = make(0, **owner_facts(this_owner(os.uname().nodename)))
    current, old, new = make(1), make(2), make(3)
    prune(tmp_path, current, keep_runs=1)
    assert [run.exists() for run in (running, current, old, new)] == [True, True, False, True]


def test_pruning_what_is_not_there_is_harmless(tmp_path: Path) -> None:
    assert prune(tmp_path / "absent") == 0
