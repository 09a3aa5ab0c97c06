"""Short names for what ends a generation: few enough to count by, as a label of a metric or in a summary."""

from __future__ import annotations

import re

from ftlaunch.launcher.exit_codes import signal_name
from ftlaunch.launcher.journal.incident import Incident

_SIGNAL = re.compile(r"\bSIG[A-Z0-9+]+\b")
_WORDS = {
    "exit": "exit code",
    "peer": "another node",
    "request": "request",
    "membership": "change of nodes",
    "lease": "lost lease",
    "spawn": "failed start",
}


def cause_name(incident: Incident) -> str:
    """``SIGKILL``, ``exception``, ``stall``, ``exit code``, ``another node``, …: some dozens of values at most."""
    cause = incident.cause
    if cause.kind == "signal":
        if cause.exit_code is not None and cause.exit_code < 0:
            return signal_name(-cause.exit_code)
        said = _SIGNAL.search(cause.reason)
        return said[0] if said else "signal"
    if cause.kind in ("exception", "stall"):
        return cause.kind
    # Whatever else the records hold must not become a label of its own.
    return _WORDS.get(cause.kind, "other")
