"""Sizes in words."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """``64 MiB``, ``1.5 GiB``: whole numbers without a fraction, one digit otherwise."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size.is_integer() else f"{size:.1f} {unit}"
