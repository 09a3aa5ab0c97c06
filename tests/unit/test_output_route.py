"""Where output goes, which prefix it gets, and the last lines that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.launcher.config import LogConfig, Stream
from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.output.files import LogFile, LogLayout, choose_layout
from ftlaunch.launcher.output.ring import LINE_BYTES, LINES, Ring
from ftlaunch.launcher.output.route import line_prefix, shows_on_console


@pytest.mark.parametrize(
    ("config", "rank0", "rank1"),
    [
        (LogConfig(), Stream.ALL, Stream.ALL),
        (LogConfig(redirects={None: Stream.ALL}), Stream.NONE, Stream.NONE),
        (LogConfig(redirects={None: Stream.OUT}), Stream.ERR, Stream.ERR),
        (LogConfig(redirects={0: Stream.ALL}), Stream.NONE, Stream.ALL),
        (LogConfig(redirects={0: Stream.ALL, None: Stream.ERR}), Stream.NONE, Stream.OUT),
        (LogConfig(redirects={None: Stream.ALL}, tees={0: Stream.ERR}), Stream.ERR, Stream.NONE),
        (LogConfig(local_ranks_filter=frozenset({1})), Stream.NONE, Stream.ALL),
        (LogConfig(tees={None: Stream.ALL}, local_ranks_filter=frozenset({1})), Stream.NONE, Stream.ALL),
    ],
)
def test_what_the_console_shows(config: LogConfig, rank0: Stream, rank1: Stream) -> None:
    for local_rank, expected in enumerate((rank0, rank1)):
        for stream in (Stream.OUT, Stream.ERR):
            assert shows_on_console(config, local_rank, stream) == bool(expected & stream)


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        (None, b"[default1]:"),
        ("", b""),
        ("[${role_name} ${rank}/${local_rank}] ", b"[default 9/1] "),
        ("$rank|$unknown|$$|${other}|", b"9|$unknown|$|${other}|"),
    ],
)
def test_the_line_prefix(template: str | None, prefix: bytes) -> None:
    assert line_prefix(template, "default", 9, 1) == prefix


def test_the_ring_keeps_the_last_lines() -> None:
    ring = Ring()
    ring.extend([b"%d\n" % number for number in range(500)])
    ring.extend([b"last"])
    ring.extend([b" one\r\n"])
    assert ring.lines() == [b"%d" % number for number in range(451, 500)] + [b"last one"]


def test_a_progress_bar_takes_one_line_of_the_ring() -> None:
    ring = Ring()
    ring.extend([b"Traceback\n", *(b"%d%%\r" % number for number in range(99)), b"\n", b"end\n"])
    assert ring.lines() == [b"Traceback", b"98%", b"end"]


def test_the_ring_is_bounded_whatever_is_written() -> None:
    ring = Ring()
    for _ in range(20):
        ring.extend([b"x" * 1_000_000])
    ring.extend([b"\n"])
    ring.extend([b"y" * 1_000_000 + b"\n"] * 2 * LINES)
    assert len(ring.lines()) == LINES
    assert sum(map(len, ring.lines())) <= LINES * LINE_BYTES


def test_the_layouts(tmp_path: Path) -> None:
    own = LogLayout(tmp_path)
    assert own.stream_file(2, 9, 1, Stream.ERR) == tmp_path / "2" / "9.err"
    assert own.filtered_file(2, Stream.OUT) == tmp_path / "2" / "filtered_stdout.log"
    torchrun = LogLayout(tmp_path, like_torchrun=True)
    assert torchrun.stream_file(2, 9, 1, Stream.OUT) == tmp_path / "attempt_2" / "1" / "stdout.log"
    assert torchrun.error_file(2, 9, 1) == tmp_path / "attempt_2" / "1" / "error.json"
    assert LogLayout(None).stream_file(0, 0, 0, Stream.OUT) is None


def test_a_log_dir_is_never_used_twice(tmp_path: Path) -> None:
    folders = {choose_layout(str(tmp_path / "logs"), None, "my/job").root for _ in range(3)}
    assert len(folders) == 3
    assert all(folder is not None and folder.name.startswith("my_job_") for folder in folders)


def test_the_null_device_as_log_dir_means_no_files() -> None:
    assert choose_layout("/dev/null", Path("/elsewhere"), "job") == LogLayout(None)


def test_a_log_dir_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--log-dir .*file/logs: Not a directory"):
        choose_layout(str(tmp_path / "file" / "logs"), None, "job")


def test_without_a_log_dir_logs_are_in_the_run_directory(tmp_path: Path) -> None:
    assert choose_layout(None, tmp_path, "job") == LogLayout(tmp_path / "logs")
    assert choose_layout(None, None, "job") == LogLayout(None)


def test_a_full_log_file_is_set_aside_once(tmp_path: Path) -> None:
    complaints: list[OSError] = []
    file = LogFile(tmp_path / "0.out", 100, lambda error, path: complaints.append(error))
    for number in range(9):
        file.write(b"%d" % number * 40)
    file.close()
    assert (tmp_path / "0.out").read_bytes() == b"8" * 40
    assert (tmp_path / "0.out.1").read_bytes() == b"6" * 40 + b"7" * 40
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.out", "0.out.1"]
    assert not complaints


def test_a_log_file_says_what_is_missing_once_it_can_be_written_again(tmp_path: Path) -> None:
    complaints: list[OSError] = []
    (tmp_path / "logs").touch()
    file = LogFile(tmp_path / "logs" / "0.out", 1000, lambda error, path: complaints.append(error))
    file.write(b"lost\n")
    (tmp_path / "logs").unlink()
    file.write(b"kept\n")
    file.close()
    assert (tmp_path / "logs" / "0.out").read_bytes() == b"\n[ftlaunch: 5 bytes are missing here]\nkept\n"
    assert len(complaints) == 1
