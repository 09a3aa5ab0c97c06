"""Log files found and read as they grow, through rotation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.launcher.ftctl._logfiles import RankLog, Tail, generations, rank_logs


def read(tail: Tail, end: bool = False) -> bytes:
    return b"".join(tail.read(end))


def test_generations_of_both_layouts_in_order(tmp_path: Path) -> None:
    for name in ("0", "2", "10", "attempt_3", "junk", "x1"):
        (tmp_path / name).mkdir()
    assert list(generations(tmp_path)) == [0, 2, 3, 10]
    assert generations(tmp_path / "missing") == {}


def test_files_of_our_own_layout(tmp_path: Path) -> None:
    for name in ("0.out", "0.err", "10.out", "2.out", "2.out.1", "2.error.json", "filtered_stdout.log"):
        (tmp_path / name).touch()
    assert [(log.rank, log.stream) for log in rank_logs(tmp_path)] == [
        *((0, "out"), (0, "err"), (2, "out"), (10, "out"))
    ]


def test_files_of_torchruns_layout(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "stdout.log").touch()
    (tmp_path / "1" / "stderr.log").touch()
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "error.json").touch()
    assert rank_logs(tmp_path) == [
        RankLog(1, "out", tmp_path / "1" / "stdout.log"),
        RankLog(1, "err", tmp_path / "1" / "stderr.log"),
    ]


def test_whole_lines_as_they_are_finished(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    tail = Tail(path)
    assert read(tail) == b""
    with open(path, "ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert read(tail) == b"one\n"
        file.write(b"o\n")
        assert read(tail) == b"two\n"
        file.write(b"rest")
        assert read(tail) == b""
        assert read(tail, end=True) == b"rest\n"
    tail.close()


def test_a_rotated_file_is_read_from_its_older_part_on(tmp_path: Path) -> None:
    (tmp_path / "0.out.1").write_bytes(b"old\nbegun ")
    (tmp_path / "0.out").write_bytes(b"line\nnew\n")
    tail = Tail(tmp_path / "0.out")
    assert read(tail) == b"old\nbegun line\nnew\n"
    tail.close()


def test_rotation_while_reading_loses_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_bytes(b"a\n")
    tail = Tail(path)
    assert read(tail) == b"a\n"
    with open(path, "ab") as file:
        file.write(b"b\nhal")
    path.rename(tmp_path / "0.out.1")
    assert read(tail) == b"b\n", "the writer has not begun its new file yet"
    path.write_bytes(b"f\nc\n")
    assert read(tail) == b"half\nc\n"
    assert read(tail, end=True) == b""
    tail.close()


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 0, b""),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * 70000 + b"\n" + b"y" * 70000 + b"\nz\n", 2, b"y" * 70000 + b"\nz\n"),
        (b"\n" * 200000, 5, b"\n" * 5),
    ],
)
def test_the_last_lines(tmp_path: Path, content: bytes, lines: int, expected: bytes) -> None:
    path = tmp_path / "0.out"
    path.write_bytes(content)
    (tmp_path / "0.out.1").write_bytes(b"older\n")
    tail = Tail(path, lines)
    assert read(tail, end=True) == expected
    tail.close()


def test_after_the_last_lines_what_comes_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_bytes(b"a\nb\n")
    tail = Tail(path, 1)
    assert read(tail) == b"b\n"
    with open(path, "ab") as file:
        file.write(b"c\nd\n")
    assert read(tail) == b"c\nd\n"
    tail.close()


def test_an_endless_line_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    path.write_bytes(b"x" * (3 << 20))
    tail = Tail(path)
    assert len(read(tail)) == 3 << 20
    tail.close()
