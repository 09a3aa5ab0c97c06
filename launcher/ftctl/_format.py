"""Numbers in columns, as short as they can be told."""

from __future__ import annotations

from ftlaunch.launcher.wording import format_bytes


def duration(seconds: float | None) -> str:
    """``0.21 s``, ``12 s``, ``3m12s``, ``1h02m``, ``4d03h``."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def size(count: float | None) -> str:
    """``512 MiB``, ``1.2 GiB``."""
    return "-" if count is None else format_bytes(count)


def rate(per_second: float | None) -> str:
    """``12.3/s``, ``0.85/s``; less than one in ten seconds as ``14 s each``."""
    if not per_second:
        return "-"
    if per_second < 0.1:
        return f"{duration(1 / per_second)} each"
    return f"{per_second:.0f}/s" if per_second >= 100 else f"{per_second:.3g}/s"


def count(number: int) -> str:
    """``12,000``"""
    return f"{number:,}"
