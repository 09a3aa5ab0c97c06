"""What another node says of itself, read with suspicion. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ftlaunch.launcher.views.overview import VERSION

_NUMBER = (int, float)
_MAYBE_TEXT = (str, type(None))
_MAYBE_COUNT = (int, type(None))
_MAYBE_NUMBER = (int, float, type(None))
Shape = Mapping[str, Any]
"""By name: a type, several types, or in a list the shape of each of its items."""

_RANK: Shape = {
    "rank": int,
    "host": str,
    "pid": _MAYBE_COUNT,
    "state": str,
    "exit_code": _MAYBE_COUNT,
    "local_rank": int,
    "phase": str,
    "sections": [str],
    "step": _MAYBE_COUNT,
    "ticks": int,
    "total": _MAYBE_COUNT,
    "step_rate": _MAYBE_NUMBER,
    "beaten": bool,
    "beat_age_s": _MAYBE_NUMBER,
    "silence_s": _MAYBE_NUMBER,
    "limit_s": _MAYBE_NUMBER,
    "limit_name": str,
    "limit_origin": str,
    "straggles": str,
    "memory_bytes": _MAYBE_COUNT,
    "failures": int,
    "last_cause": _MAYBE_TEXT,
}
_LIMIT: Shape = {"name": str, "seconds": _MAYBE_NUMBER, "origin": str, "longest_s": _NUMBER, "seen": int}
_CAUSE: Shape = {
    "generation": int,
    "rank": _MAYBE_COUNT,
    "kind": str,
    "reason": str,
    "decision": str,
    "decision_reason": str,
    "time": str,
}
_STANDBY: Shape = {"mode": str, "ready": int, "wanted": int}
_PROGRESS: Shape = {"step": int, "total": _MAYBE_COUNT, "step_rate": _MAYBE_NUMBER, "eta_s": _MAYBE_NUMBER}
_NODE: Shape = {
    "version": int,
    "job": str,
    "run": str,
    "host": str,
    "agent_pid": int,
    "phase": str,
    "phase_s": _NUMBER,
    "up_s": _NUMBER,
    "generation": int,
    "world_size": _MAYBE_COUNT,
    "nodes": _MAYBE_COUNT,
    "group_rank": _MAYBE_COUNT,
    "resume_from": _MAYBE_TEXT,
    "restarts": int,
    "restarts_counted": int,
    "restart_limit": str,
    "listening": bool,
    "standby": _STANDBY,
    "ending": _MAYBE_TEXT,
    "excluded": [{"name": str, "why": str}],
    "limits": [_LIMIT],
    "ranks": [_RANK],
}
_OPTIONAL: Mapping[str, Shape] = {"last_cause": _CAUSE, "progress": _PROGRESS}


def node(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """A node as :func:`ftlaunch.launcher.views.overview.describe_node` describes it, with nothing else in it.

    ``None`` for what is not such a thing.
    """
    try:
        known = _shaped(said, _NODE)
        for name, shape in _OPTIONAL.items():
            known[name] = None if said.get(name) is None else _shaped(said[name], shape)
    except ValueError:
        return None
    return known if known["version"] == VERSION else None


def _shaped(value: object, shape: Shape) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError
    return {name: _part(value.get(name), wanted) for name, wanted in shape.items()}


def _part(value: object, wanted: Any) -> Any:
    if isinstance(wanted, Mapping):
        return _shaped(value, wanted)
    if isinstance(wanted, list):
        if not isinstance(value, list):
            raise ValueError
        return [_part(item, wanted[0]) for item in value]
    # bool is an int to Python, not to us.
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise ValueError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    if isinstance(value, str):
        # Raises for halves of surrogate pairs, which JSON carries and no terminal takes.
        value.encode()
    return value
