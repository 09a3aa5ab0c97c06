"""Numbers, text and tables as people read them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def format_bytes(count: float) -> str:
    """``64 MiB``, ``1.5 GiB``: whole numbers without a fraction, one digit otherwise."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size.is_integer() else f"{size:.1f} {unit}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """``1 step``, ``2 steps``"""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def shortened(text: str, width: int) -> str:
    """One line of at most ``width`` characters, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def columns(rows: Sequence[Sequence[str]], numbers: Collection[int] = (), gap: str = "   ") -> list[str]:
    """Cells below each other, to the left, those of the columns ``numbers`` to the right; nothing behind the last."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        gap.join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
