"""One event in one line, for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ftlaunch.launcher.wording import shortened

_HEAD = frozenset({"time", "monotonic", "event", "generation", "rank", "reason"})
_VALUE_WIDTH = 120


def one_line(event: Mapping[str, Any]) -> str:
    """Time, generation, rank, name, reason, and what else the event tells."""
    generation, rank = event.get("generation"), event.get("rank")
    parts = [
        str(event.get("time", ""))[:23].ljust(23),
        f"gen {'-' if generation is None else generation}".ljust(7),
        f"rank {'-' if rank is None else rank}".ljust(9),
        str(event["event"]).ljust(20),
        shortened(str(event.get("reason") or ""), 2 * _VALUE_WIDTH),
        *(f"{key}={_value(value)}" for key, value in event.items() if key not in _HEAD and value not in (None, "")),
    ]
    return " ".join(parts).rstrip()


def _value(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value), _VALUE_WIDTH)
