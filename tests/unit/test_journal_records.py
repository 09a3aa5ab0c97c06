"""events.jsonl: what is written, what never goes wrong, what a reader tolerates."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path

import pytest

from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.journal.records import EventLog, parse_event, plain, read_events


class Colour(enum.Enum):
    RED = "red"


def test_an_event_is_one_line_with_the_six_common_fields(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", pytest.fail)
    log.write("worker_exited", generation=1, rank=3, reason="killed by\nSIGKILL", exit_code=-9)
    log.write("job_finished", time="never", monotonic="never")
    log.close()
    first, second = (tmp_path / "events.jsonl").read_text().splitlines()
    event = json.loads(first)
    assert list(event)[:6] == ["time", "monotonic", "event", "generation", "rank", "reason"]
    assert event["reason"] == "killed by\nSIGKILL" and event["exit_code"] == -9
    assert event["time"].endswith("+00:00") and isinstance(event["monotonic"], float)
    assert isinstance(json.loads(second)["monotonic"], float)


def test_two_writers_append_to_one_file(tmp_path: Path) -> None:
    logs = [EventLog(tmp_path / "events.jsonl", pytest.fail) for _ in range(2)]
    for number in range(20):
        logs[number % 2].write("beat", n=number)
    for log in logs:
        log.close()
    assert [event["n"] for event in read_events(tmp_path / "events.jsonl")] == list(range(20))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\xff\x00", "\\xff\x00"),
        (Colour.RED, "red"),
        (ExitCode.UNHEALTHY, 75),
        (True, True),
        (Path("/x"), "/x"),
        ({1: {2}}, {"1": [2]}),
        (1 << 70, hex(1 << 70)),
        ("\udcff", "\udcff"),
    ],
)
def test_every_value_becomes_valid_json(value: object, expected: object) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_values_are_bounded() -> None:
    nested: object = "core"
    for _ in range(5000):
        nested = [nested]
    event = plain({"text": "x" * 10_000_000, "many": range(3), "list": list(range(100_000)), "deep": nested})
    assert len(json.dumps(event)) < 80_000


def test_a_full_disk_costs_one_warning_and_keeps_the_last_events_here() -> None:
    warnings: list[str] = []
    log = EventLog(Path("/dev/full"), warnings.append)
    for number in range(3):
        log.write("beat", n=number)
    log.close()
    assert len(warnings) == 1 and "No space left on device" in warnings[0]
    assert [event["n"] for event in log.recent] == [0, 1, 2]


def test_without_a_file_events_are_still_kept() -> None:
    log = EventLog(None, pytest.fail)
    for number in range(5000):
        log.write("beat", n=number)
    assert 100 <= len(log.recent) < 5000
    assert log.recent[-1]["n"] == 4999


def test_a_torn_line_of_an_earlier_writer_does_not_swallow_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event":"job_started"}\n{"event":"worker_ex')
    log = EventLog(path, pytest.fail)
    log.write("job_finished")
    log.close()
    assert [event["event"] for event in read_events(path)] == ["job_started", "job_finished"]


def test_the_reader_skips_what_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = b'{"event":"a"}\n'
    path.write_bytes(
        good + b"\xff\xfe\n\n[1]\n{}\n" + b"[" * 100_000 + b"\n" + b"x" * 3_000_000 + b"\n" + good + b'{"event":"torn"}'
    )
    assert [event["event"] for event in read_events(path)] == ["a", "a"]


def test_reading_what_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        list(read_events(tmp_path / "events.jsonl"))


def test_a_line_without_its_end_is_no_event_yet() -> None:
    assert parse_event(b'{"event":"a"}') is None


def test_the_file_is_closed_on_exec(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", pytest.fail)
    log.write("job_started")
    inheritable = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _leads_to(fd, tmp_path)]
    assert len(inheritable) == 1 and not os.get_inheritable(inheritable[0])
    log.close()


def _leads_to(fd: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
    except OSError:
        return False
