"""Log files of ranks: where they are, and writing to them without ever failing the rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.launcher.config import Stream
from ftlaunch.launcher.errors import UsageError

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(frozen=True)
class LogLayout:
    """Where the files of a rank are. ``root`` ``None``: nowhere.

    Own layout: ``<root>/<generation>/<rank>.{out,err}``. torchrun's, for ``--log-dir``:
    ``<root>/attempt_<generation>/<local rank>/{stdout,stderr}.log``.
    """

    root: Path | None
    like_torchrun: bool = False

    def generation_dir(self, generation: int) -> Path | None:
        """The directory with all files of one generation."""
        if self.root is None:
            return None
        return self.root / (f"attempt_{generation}" if self.like_torchrun else str(generation))

    def stream_file(self, generation: int, rank: int, local_rank: int, stream: Stream) -> Path | None:
        """The file that gets the raw bytes of one stream of one rank."""
        folder = self.generation_dir(generation)
        if folder is None:
            return None
        out = stream is Stream.OUT
        if self.like_torchrun:
            return folder / str(local_rank) / ("stdout.log" if out else "stderr.log")
        return folder / f"{rank}.{'out' if out else 'err'}"

    def error_file(self, generation: int, rank: int, local_rank: int) -> Path | None:
        """What the rank gets as TORCHELASTIC_ERROR_FILE. Its directory exists once the rank was attached."""
        folder = self.generation_dir(generation)
        if folder is None:
            return None
        return folder / str(local_rank) / "error.json" if self.like_torchrun else folder / f"{rank}.error.json"

    def filtered_file(self, generation: int, stream: Stream) -> Path | None:
        """The file for lines that match a duplicate filter, of all ranks together."""
        folder = self.generation_dir(generation)
        return folder and folder / f"filtered_{'stdout' if stream is Stream.OUT else 'stderr'}.log"


def choose_layout(log_dir: str | None, run_dir: Path | None, rdzv_id: str) -> LogLayout:
    """Decide where rank output goes, and make the directory for ``--log-dir``: never one that exists already.

    Raises :class:`UsageError` when the directory that the user asked for cannot be made.
    """
    if not log_dir:
        return LogLayout(run_dir / "logs" if run_dir else None)
    if os.path.abspath(log_dir) == os.devnull:
        return LogLayout(None)
    safe_id = (rdzv_id or "none").replace("/", "_").replace("\0", "_")[:100]
    try:
        os.makedirs(log_dir, exist_ok=True)
        made = _make_new(os.path.join(os.path.abspath(log_dir), safe_id))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--log-dir {log_dir}: {reason}; give a directory that can be written") from None
    return LogLayout(Path(made), like_torchrun=True)


def _make_new(stem: str) -> str:
    while True:
        folder = f"{stem}_{os.urandom(4).hex()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            return folder


class LogFile:
    """An append-only file that may fail at any time without hurting anybody. Not thread-safe."""

    def __init__(self, path: Path, limit_bytes: int, complain: Callable[[OSError, Path], None]) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._complain = complain
        self._fd = -1
        self._size = 0
        self._lost = 0

    def write(self, data: bytes) -> None:
        """Append. An error is complained about; writing is tried again with the next data."""
        try:
            self.open()
            if self._lost:
                self._put(b"\n[ftlaunch: %d bytes are missing here]\n" % self._lost)
                self._lost = 0
            if self._size and self._size + len(data) > self._limit_bytes:
                self._rotate()
            self._put(data)
        except OSError as error:
            self._lost += len(data)
            self._complain(error, self._path)

    def open(self) -> None:
        """Create the file. Raises OSError."""
        if self._fd < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, _FLAGS, 0o666)
            self._size = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close it; a later write opens it again."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._fd, rest)
            self._size += written
            rest = rest[written:]

    def _rotate(self) -> None:
        """Keep the previous part as ``.1``; at most twice the limit is on the disk."""
        self.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self.open()
