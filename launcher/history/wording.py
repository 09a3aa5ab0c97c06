"""Shares as people read them, and names for what time went for."""

from __future__ import annotations

import math

from ftlaunch.launcher.history.goodput import Use

NAMES = {
    Use.STEPS: "steps",
    Use.REPEATED: "repeated steps",
    Use.UNFINISHED: "stalls, broken-off steps",
    Use.DETECTED: "noticing",
    Use.STOPPED: "stopping ranks",
    Use.RECLAIMED: "freeing GPUs",
    Use.AGREED: "rendezvous",
    Use.STARTED: "starting ranks",
    Use.RESUMED: "set-up to first step",
    Use.END: "after the last step",
    Use.UNKNOWN: "not known (no beats)",
}
"""For tables and pictures."""


def percent(share: float | None) -> str:
    """``97.1 %``; only what is whole is 100 %. A dash for ``None``."""
    return "-" if share is None else f"{bare_percent(share)} %"


def bare_percent(share: float) -> str:
    """``97.1``. Rounded down, so that a loss stays visible."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}"
