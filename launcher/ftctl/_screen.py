"""``ftctl status`` on a terminal, drawn with rich."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.ftctl import _headline, _layout, _ranks

_STYLES = {"": "", "dim": "dim", "worry": "yellow", "alarm": "bold red"}
_PHASE_STYLES = {"running": "green", "stopping": "yellow", "reclaiming": "yellow", "joining": "yellow"}
_BAR_WIDTH = 30
_FRAME_LINES = 4
_ENOUGH_LINES = 100
_GROUP_FROM = 100
"""So many ranks are shown one by one where nothing else limits them."""

Status = Mapping[str, Any]


def show_once(status: Status, all_ranks: bool) -> None:
    """Print one table."""
    console = Console(highlight=False)
    console.print(_page(status, console.width, len(status["ranks"]) + _ENOUGH_LINES if all_ranks else None))


def watch(fetch: Callable[[], Status], interval_s: float) -> None:
    """Show it in place until ``fetch`` raises; that error passes on once the terminal is as it was."""
    console = Console(highlight=False)
    wake = threading.Event()
    with _orderly_end(), Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            status = fetch()
            live.update(_page(status, console.width, console.height), refresh=True)
            wake.wait(interval_s)


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM and SIGHUP leave the alternate screen, too; by default they would end the process inside it."""

    def end(signum: int, frame: object) -> None:
        sys.exit(128 + signum)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _page(status: Status, width: int, height: int | None) -> RenderableType:
    """Everything; with a ``height`` no more than fits."""
    above = [part for line in _headline.headline(status) for part in _layout.fold(line, width)]
    below = [part for line in (*_headline.limits(status), _ranks.LEGEND) for part in _layout.fold(line, width, 1)]
    progress = _progress(status, width)
    room = _GROUP_FROM
    if height is not None:
        room = max(3, height - len(above) - len(below) - _FRAME_LINES)
    parts: list[RenderableType] = [_colour(line, status) for line in above]
    if progress is not None:
        parts.append(progress)
    return Group(*parts, "", *_rows(status, width, room), "", *(_text(line, "dim") for line in below))


def _text(line: str, style: str) -> Text:
    return Text(line, style, no_wrap=True, overflow="crop")


def _colour(line: str, status: Status) -> Text:
    if line.startswith(("last cause", "slow", "  ")):
        return _text(line, "yellow")
    text = _text(line, "bold yellow" if line.startswith(("ending", "trouble")) else "")
    text.highlight_words([status["phase"]], _PHASE_STYLES.get(status["phase"], "yellow"))
    return text


def _progress(status: Status, width: int) -> RenderableType | None:
    progress = status["progress"]
    if progress is None:
        return None
    words = _headline.bar(status)
    if progress["total"] is None:
        return _text(words, "")
    words = words.partition("] ")[2]
    if width < _BAR_WIDTH + 1 + len(words):
        return _text(words, "")
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=_headline.fraction(progress), width=_BAR_WIDTH, complete_style="green")
    grid.add_row(bar, _text(words, ""))
    return grid


def _rows(status: Status, width: int, room: int) -> list[Text]:
    with_hosts = len(status["nodes"]) > 1
    rows = _ranks.rows(status["ranks"], room, with_hosts)
    header, *lines = _layout.table(_ranks.header(with_hosts), [row.cells for row in rows], width, _ranks.NUMBERS)
    return [_text(header, "bold"), *(_text(line, _STYLES[row.mood]) for line, row in zip(lines, rows, strict=True))]
