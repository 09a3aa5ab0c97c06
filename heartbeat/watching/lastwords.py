"""What a worker said before it ended, as the agent reads it. Written by :mod:`ftlaunch.heartbeat.uncaught`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LastWords:
    """The payload of a LAST_WORDS message, whatever was sent turned into the right types."""

    type: str = ""
    """Qualified name of the exception: ``RuntimeError``, ``torch.distributed.DistNetworkError``, ``SystemExit``."""
    message: str = ""
    traceback: str = ""
    """As printed, at most 32 kB, cut in the middle; empty for SystemExit."""
    place: str = ""
    """``file:line`` of the innermost frame of the user's own code."""
    exit_code: int = 1
    """What the process will end with; ``-2`` when it will die of SIGINT."""
    step: int | None = None
    """The last step that the script told."""
    ticks: int = 0
    """Optimizer steps of this process."""
    beaten: bool = False
    """Whether there was any progress at all."""
    errno: int | None = None
    """Of the exception or its nearest cause that has one."""

    @property
    def exception(self) -> str:
        """The same name; empty for SystemExit, with which a script ends as it wants to."""
        return "" if self.type == "SystemExit" else self.type


def from_payload(payload: Mapping[str, Any]) -> LastWords:
    """Read a payload; a missing or ill-typed field takes its default."""
    given: dict[str, Any] = {}
    for name, default in LastWords.__dataclass_fields__.items():
        value = payload.get(name)
        wanted = int if name in ("step", "errno") else type(default.default)
        if type(value) is wanted:
            given[name] = value
    return LastWords(**given)
