"""The log files of a run: which there are, and reading them as they grow."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16
_OLDER = ".1"
_LINE_LIMIT = 1 << 20
"""What is longer without a line end is passed on in pieces."""


@dataclass(frozen=True, order=True)
class RankLog:
    """One file. ``rank`` is the local one where the files were laid out as torchrun does (``--log-dir``)."""

    rank: int
    stream: str
    """``out`` or ``err``."""
    path: Path


def generations(root: Path) -> dict[int, Path]:
    """The directory of each generation, by number, ascending; empty when there is none."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            match = re.fullmatch(r"(?:attempt_)?(\d+)", name)
            if match:
                found[int(match[1])] = root / name
    return dict(sorted(found.items()))


def rank_logs(folder: Path) -> list[RankLog]:
    """All files of one generation, by rank, stdout first."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            own = re.fullmatch(r"(\d+)\.(out|err)", entry)
            if own:
                found.append(RankLog(int(own[1]), own[2], folder / entry))
            elif entry.isdecimal():
                for stream, name in (("out", "stdout.log"), ("err", "stderr.log")):
                    path = folder / entry / name
                    if path.exists():
                        found.append(RankLog(int(entry), stream, path))
    return sorted(found, key=lambda log: (log.rank, log.stream == "err"))


class Tail:
    """Reads whole lines of a file as it grows, through its rotation. Close it."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._last = last
        self._file: BinaryIO | None = None
        self._begun = False
        self._pending = b""

    def read(self, end: bool = False) -> Iterator[bytes]:
        """What is new, whole lines; with ``end`` also a line that was never finished."""
        while self._file is not None or self._open_next():
            yield from self._lines()
            if self._file is None or _is_at(self._file, self._path):
                break
            # It was set aside for a new one: whoever wrote it had finished with it before that.
            yield from self._lines()
            self.close()
        if end and self._pending:
            yield self._pending + b"\n"
            self._pending = b""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_next(self) -> bool:
        older = self._path.with_name(self._path.name + _OLDER)
        if not self._begun and self._last is None and older.exists():
            self._file = _open(older)
        if self._file is None:
            self._file = _open(self._path)
        if self._file is not None and not self._begun and self._last is not None:
            self._file.seek(_start_of_last(self._file, self._last))
        self._begun = self._begun or self._file is not None
        return self._file is not None

    def _lines(self) -> Iterator[bytes]:
        while self._file is not None and (chunk := self._file.readline(_LINE_LIMIT)):
            self._pending += chunk
            if self._pending.endswith(b"\n") or len(self._pending) >= _LINE_LIMIT:
                line, self._pending = self._pending, b""
                yield line


def _open(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except OSError:
        return None


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        there, here = os.stat(path), os.fstat(file.fileno())
    except OSError:
        return True
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin. Reads from the end, as much as it takes."""
    position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return position
    missing = lines
    first = True
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        if first and block.endswith(b"\n"):
            missing += 1
        first = False
        ends = [i for i, byte in enumerate(block) if byte == 0x0A]
        if len(ends) >= missing:
            return start + ends[-missing] + 1
        missing -= len(ends)
        position = start
    return 0
