"""Plain columns, as kubectl prints them."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "   "


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align cells to the left; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
