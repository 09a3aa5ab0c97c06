"""Lines of a given width: columns that give way in a fixed order, long lines folded. Pure.

Laid out here and not by rich, whose tables take 40 ms for 64 ranks: too much for a view that is redrawn every second.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from ftlaunch.launcher.wording import columns, shortened

_GAP = "  "
_DROPPED = ("LAST CAUSE", "PID", "FAILED", "MEMORY", "NODE", "RATE", "SECTION")
"""What a narrow terminal does without, first one first; the last cause of all is in the headline as well."""
_LEAST_TEXT = 16


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, numbers: Collection[str] = ()) -> list[str]:
    """The header and all rows, none wider than ``width``. Columns named in ``numbers`` are aligned to the right."""
    widths = [max(len(name), *(len(row[i]) for row in rows)) if rows else len(name) for i, name in enumerate(header)]
    last = len(header) - 1
    widths[last] = min(widths[last], max(_LEAST_TEXT, width - _total(widths[:last]) - len(_GAP)))
    kept = list(range(len(header)))
    for name in _DROPPED:
        if _total([widths[i] for i in kept]) <= width:
            break
        kept = [i for i in kept if header[i] != name]
    cut = [[shortened(row[i], widths[i]) for i in kept] for row in (header, *rows)]
    right = [place for place, i in enumerate(kept) if header[i] in numbers]
    return [line[:width] for line in columns(cut, right, _GAP)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def fold(line: str, width: int, most: int = 2) -> list[str]:
    """The line over at most ``most`` lines, broken between words."""
    if len(line) <= width:
        return [line]
    folded = textwrap.wrap(line, width, subsequent_indent="  ", drop_whitespace=True)
    return [*folded[: most - 1], shortened(" ".join(folded[most - 1 :]), width)] if len(folded) > most else folded
