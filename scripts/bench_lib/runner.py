"""Run one command in private directories, with a time limit, and leave nothing of it behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from support import procfs
from support.waiting import wait_until

_MARKER = "FTLAUNCH_BENCH"
_DROP = ("PET_", "TORCHELASTIC_", "FTLAUNCH_", "DRILL_", "TORCH_", "PYTHON")


class Failed(Exception):
    """A sample could not be taken; the text says why. Caught by the bench, which records it and goes on."""


class Running:
    """A command under way; a context manager that kills whatever carries its marker when it is left.

    It then also removes ``folder``, unless the folder is the caller's (``borrowed``).
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, marker: str, started_at: float, borrowed: bool
    ) -> None:
        self.process = process
        self.folder = folder
        self.marker = marker
        self.started_at = started_at
        self._borrowed = borrowed

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        wait_until(lambda: not procfs.kill_carrying(self.marker), 30.0, "killed processes are gone")
        if not self._borrowed:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def out(self) -> Path:
        """Where the workload writes."""
        return self.folder / "out"

    def finish(self, timeout_s: float) -> float:
        """Wait for the end; returns the wall time in seconds. Raises :class:`Failed` unless it ended with 0 in time."""
        code = self.end(timeout_s)
        if code != 0:
            raise Failed(f"exit code {code}: {self.tail()}")
        return time.monotonic() - self.started_at

    def end(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code. Raises :class:`Failed` when it takes too long."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {timeout_s:g} s: {self.tail()}") from None

    def tail(self) -> str:
        """Return the last line that says something about an error, else the last line."""
        lines = [
            line.strip() for line in (self.folder / "log").read_text(errors="replace").splitlines() if line.strip()
        ]
        telling = [line for line in lines if "Error" in line or "rror:" in line]
        return (telling or lines or ["no output"])[-1][:300]


def start(command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> Running:
    """Start ``command`` in a session of its own. With ``folder`` its output goes on in a directory used before."""
    borrowed = folder is not None
    folder = folder or Path(tempfile.mkdtemp(prefix="ftb-"))
    for name in ("out", "home", "tmp", "run"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    marker = f"{_MARKER}={uuid.uuid4().hex}"
    key, _, value = marker.partition("=")
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(_DROP)}
    private = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_STATE_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "DRILL_OUT": str(folder / "out"),
        key: value,
    }
    with open(folder / "log", "ab") as log:
        started_at = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**inherited, **private, **environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Running(process, folder, marker, started_at, borrowed)
