"""The directory through which ranks are told of faults to come; their side is :mod:`ftlaunch.heartbeat.drill`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.launcher.drill.plan import Fault, PlanError
from ftlaunch.launcher.drill.steps import Entry, parse_ledger

VARIABLE = "FTLAUNCH_DRILLS"
"""Names the directory; with it ranks look for faults at each of their steps, without it never."""
MARK = "mark"
"""A fault that does nothing: the step is told, and somebody else does what is to be done."""


@dataclass(frozen=True)
class OwnGroup:
    """A control group for a rank that is to run out of memory."""

    path: Path
    limit: int


class Board:
    """Made by :func:`open_board`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, fault: Fault, *, mark: bool = False, group: OwnGroup | None = None) -> None:
        """Have it happen once, at its step; at the rank's next one when it has none. Raises OSError."""
        shape = {
            "id": fault.id,
            "rank": fault.rank if fault.rank is not None else 0,
            "kind": MARK if mark else fault.kind.value,
            "at_step": fault.at_step,
            "after_steps": fault.after_steps,
            **({"group": str(group.path), "limit": group.limit} if group is not None else {}),
        }
        path = self._path(fault.id)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(shape), encoding="utf-8")
        part.replace(path)

    def withdraw(self, fault_id: str) -> bool:
        """Take it back; False when it has happened already, or is happening."""
        try:
            self._path(fault_id).unlink()
        except OSError:
            return False
        return True

    def keep_ledger(self) -> None:
        """Have every rank write down every step. Raises OSError."""
        (self.folder / "steps").mkdir(mode=0o700, exist_ok=True)

    def read_ledger(self) -> Mapping[int, tuple[Entry, ...]]:
        """By rank: the steps of all its lives, in the order in which they were made. Empty where none was kept."""
        found = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder / "steps"):
                if name.isdecimal():
                    found[int(name)] = parse_ledger((self.folder / "steps" / name).read_text(encoding="ascii"))
        return found

    def _path(self, fault_id: str) -> Path:
        return self.folder / "faults" / f"{fault_id}.json"


def open_board(folder: str) -> Board:
    """Make the directory where it is missing. Raises :class:`PlanError` when others could write to it, too."""
    from ftlaunch.heartbeat.drill import is_private

    place = Path(os.path.abspath(folder))
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = is_private(str(place))
        if private:
            (place / "faults").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PlanError(f"{VARIABLE}={place} cannot be used: {error.strerror}; name a directory of your own") from None
    if not private:
        raise PlanError(f"{VARIABLE}={place} is not a directory that you own and nobody else can write to")
    return Board(place)
