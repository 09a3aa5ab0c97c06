"""Numbers and text as people read them, and names for what time went for."""

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

_MINUTE = 60
_HOUR = 3600
_DAY = 86400


def seconds(value: float) -> str:
    """``0.4 ms``, ``12 ms``, ``0.26 s``, ``4.2 s``, ``412 s``, ``21 min 05 s``, ``1 h 05 min``, ``3 d 04 h``"""
    if value < 0.0095:
        return f"{value * 1000:.1f} ms"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 0.995:
        return f"{value:.2f} s"
    if value < 99.95:
        return f"{value:.1f} s"
    if value < 599.5:
        return f"{value:.0f} s"
    if value < 3599.5:
        return f"{round(value) // 60} min {round(value) % 60:02d} s"
    minutes = round(value / _MINUTE)
    if minutes < _DAY // _MINUTE:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(value / _HOUR)
    return f"{hours // 24} d {hours % 24:02d} h"


def percent(share: float | None) -> str:
    """``97.1 %``; only what is whole is 100 %. A dash for ``None``."""
    return "-" if share is None else f"{bare_percent(share)} %"


def bare_percent(share: float) -> str:
    """``97.1``. Rounded down, so that a loss stays visible."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """``1 step``, ``2 steps``"""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def shortened(text: str, width: int) -> str:
    """One line of at most ``width`` characters, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
