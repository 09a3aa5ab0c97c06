"""Importing ahead at a pace that leaves the machine to the ranks at work."""

from __future__ import annotations

from time import process_time

from ftlaunch.heartbeat import hooks
from ftlaunch.heartbeat.standbys import idle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_SLICE_S = 0.01
_MAX_PAUSE_S = 1.0


def nothing() -> None:
    """Do so."""


class Pacer:
    """Finds no module, but is asked at every import: pauses there so that the ranks at work are not disturbed."""

    def __init__(self, pause: Callable[[float], None], denied: idle.Denied) -> None:
        """``pause`` waits for that many seconds, or shorter when waiting makes no sense any more."""
        self.asked: set[str] = set()
        """Top-level names that modules tried to import, whether there were such modules or not."""
        self.on_import: Callable[[], None] = nothing
        self.offence = ""
        self.offenders: list[str] = []
        self._pause = pause
        self._denied = denied
        self._share = 1.0
        self._mark = process_time()

    def slow_down(self, pace: dict[str, Any]) -> None:
        """From now on use this share of a core.

        By pauses alone: bound to fewer CPUs, a library that is loaded meanwhile would start too few threads for ever.
        """
        share = pace.get("share", 1.0)
        self._share = min(1.0, max(0.01, share)) if isinstance(share, (int, float)) else 1.0

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Always None, perhaps after a pause. Refuses what must not be imported by a standby."""
        if path is None:
            self.asked.add(name)
        self.on_import()
        if self._denied.covers(name) and hooks.find_behind(self, name, path, target) is not None:
            # The importer may catch the error, and go on without for ever: not so in a cold start.
            self.blame(f"imports {name}, which acts at import")
            raise ImportError(f"{name} must not be imported ahead", name=name)
        used = process_time() - self._mark
        if self._share < 1.0 and used >= _SLICE_S:
            self._pause(min(_MAX_PAUSE_S, used * (1.0 / self._share - 1.0)))
            self._mark = process_time()
        return None

    def blame(self, offence: str) -> None:
        """The modules being imported do what none may do in a standby."""
        if not self.offence:
            self.offence, self.offenders = offence, idle.importing()
