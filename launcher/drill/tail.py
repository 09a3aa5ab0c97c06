"""Following the events of runs as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.launcher.journal.records import EVENTS_FILE, parse_event


class Tail:
    """Reads the events of one run directory."""

    def __init__(self, run: Path, offset: int = 0) -> None:
        self.events: list[Mapping[str, Any]] = []
        self._path = run / EVENTS_FILE
        self._offset = offset

    def read(self) -> int:
        """Take in what was written since; returns how many events that were. Nothing while there is no file."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return 0
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [event for line in whole.splitlines(keepends=True) if (event := parse_event(line)) is not None]
        self.events += new
        return len(new)
