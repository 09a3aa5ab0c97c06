"""``events.jsonl``: one JSON object per line for everything that happens, written at once, read by everything else."""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.launcher import clock

EVENTS_FILE = "events.jsonl"
RECOVERY = (
    "failure_detected",
    "workers_stopped",
    "gpu_reclaimed",
    "rendezvous_completed",
    "workers_started",
    "training_resumed",
)
"""The moments of a recovery, as in docs/architecture.md."""
OF_THE_FAILED = frozenset(RECOVERY[:3])
"""Those of the generation that failed; the others are of the next one."""
_STRING_LIMIT = 16384
_ITEMS_LIMIT = 2000
_DEPTH_LIMIT = 6
_INT_BITS = 64
_RECENT = 1000
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
_READ_LIMIT = 1 << 20


class EventLog:
    """Appends events; never raises. Without a path, or when the disk is full, only the last events are kept here.

    One write(2) per event, about 20 us. What was written survives the agent's death, not the machine's: no fsync.
    """

    def __init__(self, path: Path | None, warn: Callable[[str], None]) -> None:
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=_RECENT)
        """The last events, newest last."""
        self.observers: list[Callable[[Mapping[str, Any]], None]] = []
        """Told of every event, at once; must be quick and must not raise."""
        self._path = path
        self._warn = warn
        self._fd = -1
        self._torn = False
        self._warned = False

    def write(
        self,
        name: str,
        *,
        generation: int | None = None,
        rank: int | None = None,
        reason: str | None = None,
        **fields: Any,
    ) -> None:
        """Record one event now. Values that JSON does not know are written as text; long ones are cut."""
        head = {
            "time": clock.wall(),
            "monotonic": round(clock.monotonic(), 6),
            "event": name,
            "generation": generation,
            "rank": rank,
            "reason": reason,
        }
        # The head wins: a field of the same name must not make the line lie about when and where.
        event = {key: plain(value) for key, value in {**head, **fields, **head}.items()}
        self.recent.append(event)
        for observe in self.observers:
            observe(event)
        if self._path is not None:
            self._append(self._path, event)

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, path: Path, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            if self._fd < 0:
                self._fd = os.open(path, _FLAGS, 0o666)
                _hold(self._fd)
                self._torn = _ends_torn(path)
            if self._torn:
                # A line that was cut off (full disk, an earlier agent killed half-way) must not swallow this one.
                line = b"\n" + line
            written = os.write(self._fd, line)
            self._torn = written < len(line)
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(f"cannot write {path}: {error.strerror}; the job goes on, its record has gaps")


def _hold(fd: int) -> None:
    """Show by a lock (flock(2)) that somebody lives who writes here; other containers see no more of us than that."""
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether a living :class:`EventLog` of this machine has the file open."""
    import fcntl

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Held; or a file system without locks, where it may well be.
        return True
    finally:
        os.close(fd)
    return False


def _ends_torn(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def plain(value: Any, depth: int = 0) -> Any:
    """Reduce a value to what JSON knows, bounded in size and depth."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Beyond 64 bits many readers fail, and CPython itself refuses to print very long ones.
        return int(value) if value.bit_length() < _INT_BITS else hex(value)[:_STRING_LIMIT]
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping) and depth < _DEPTH_LIMIT:
        return {str(key): plain(item, depth + 1) for key, item in list(value.items())[:_ITEMS_LIMIT]}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEPTH_LIMIT:
        return [plain(item, depth + 1) for item in list(value)[:_ITEMS_LIMIT]]
    text = value if isinstance(value, str) else _as_text(value, depth)
    return text if len(text) <= _STRING_LIMIT else text[:_STRING_LIMIT] + f"… ({len(text)} characters)"


def _as_text(value: Any, depth: int) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    # What is nested too deep may be too deep for str() as well.
    return str(value) if depth < _DEPTH_LIMIT else f"({type(value).__name__})"


def read_events(path: Path) -> Iterator[Mapping[str, Any]]:
    """Read events in order; skips what is none (a torn last line, garbage). Raises OSError."""
    with open(path, "rb") as file:
        while line := file.readline(_READ_LIMIT):
            if (event := parse_event(line)) is not None:
                yield event


def parse_event(line: bytes) -> Mapping[str, Any] | None:
    """One line as an event, or ``None``. A line without its end is still being written, and counts as none."""
    if not line.endswith(b"\n"):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
