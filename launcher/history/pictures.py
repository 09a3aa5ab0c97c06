"""The pictures of a report, drawn by matplotlib as SVG that takes its colours from the page around it.

Imported only when a report is made; raises ImportError where matplotlib is not installed.
"""

from __future__ import annotations

import io
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import matplotlib
import numpy
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from ftlaunch.launcher.history.goodput import Account, Use
from ftlaunch.launcher.history.steps import Steps
from ftlaunch.launcher.history.tables import first_rank
from ftlaunch.launcher.history.together import Job, Node
from ftlaunch.launcher.history.wording import NAMES
from ftlaunch.launcher.wording import seconds

# Stands for the page's own colour of text and lines, which differs between light and dark.
_INK = "#0a0b0c"
_FAINT = "#0d0e0f"
_PAGE_COLOURS = {_INK: "var(--ink)", _FAINT: "var(--line)"}
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9.0,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
COLOURS = {
    Use.STEPS: "#2f9e6e",
    Use.REPEATED: "#e0a526",
    Use.UNFINISHED: "#d97757",
    Use.DETECTED: "#8d3fa8",
    Use.STOPPED: "#c0392b",
    Use.RECLAIMED: "#e58fb0",
    Use.AGREED: "#5a67c7",
    Use.STARTED: "#2aa3b8",
    Use.RESUMED: "#3d7fc1",
    Use.END: "#8a8f98",
    Use.UNKNOWN: "#a59f94",
}
"""Told apart on white and on black."""
_WIDTH_IN = 10.5
_COLUMNS = 1400
_MAX_ROWS = 2048
_MAX_MARKS = 400
_MOST_TICKS = 10
_HOUR_S = 3600
_TICKS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, *(n * _HOUR_S for n in (1, 2, 3, 6, 12, 24, 48, 168)))
_UNITS = ((24 * _HOUR_S, "d"), (_HOUR_S, "h"), (60, "min"), (1, "s"))


def draw(job: Job) -> dict[str, str]:
    """All pictures that make sense for this job, by name, each an ``<svg>`` element. Under a second for each."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    makers: Mapping[str, Callable[[Job], Figure | None]] = {
        "timeline": _timeline,
        "steps": _steps,
        "recoveries": _recoveries,
        "causes": _causes,
    }
    found = {}
    with matplotlib.rc_context(_STYLE):
        for name, make in makers.items():
            figure = make(job)
            if figure is not None:
                found[name] = _svg(figure, name)
    return found


def _svg(figure: Figure, name: str) -> str:
    target = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several pictures share one page: names must differ, and a rule for "*" would reach all of it.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{name}"', svg, count=1)
    for colour, variable in _PAGE_COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg


def _figure(height_in: float, columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots(1, columns)


def _timeline(job: Job) -> Figure | None:
    """What every rank did, and which one began each incident."""
    wall_s = max((node.offset_s + node.account.wall_s for node in job.nodes), default=0.0)
    start_s = min((node.offset_s for node in job.nodes), default=0.0)
    ranks = job.ranks
    if not ranks or wall_s <= start_s:
        return None
    scale = max(1, -(-ranks // _MAX_ROWS))
    image = numpy.zeros((-(-ranks // scale), _COLUMNS, 4))
    for node in job.nodes:
        _paint(image, node, start_s, wall_s - start_s, scale)
    figure, axes = _figure(min(7.0, 1.1 + 0.16 * max(4, len(image))))
    axes.imshow(
        image, aspect="auto", interpolation="none", extent=(0, wall_s - start_s, ranks - 0.5, -0.5), origin="upper"
    )
    marks = [(loss.at_s - start_s, rank) for loss in job.account.losses if (rank := first_rank(loss)) is not None]
    if marks:
        size = 30 if len(marks) < 60 else 12
        axes.scatter(
            *zip(*marks[-_MAX_MARKS:], strict=True), marker="x", s=size, color=_INK, linewidths=1.1, clip_on=False
        )
    axes.set_ylabel("rank")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _time_axis(axes, wall_s - start_s)
    used = [use for use in Use if any(use in node.account.by_use for node in job.nodes)]
    _legend(figure, used)
    return figure


def _paint(image: Any, node: Node, start_s: float, span_s: float, scale: int) -> None:
    """Training first, so that a short recovery stays visible on top of it: at least one column wide."""
    ranks = {item.number: item.ranks for item in node.history.generations if item.slots}
    shift = node.offset_s - start_s - node.history.started_at
    first = next(iter(ranks.values()), range(0))
    for stretch in sorted(node.account.stretches, key=lambda stretch: stretch.use is not Use.STEPS):
        rows = ranks.get(stretch.generation, first)
        left = int((stretch.start + shift) / span_s * _COLUMNS)
        right = max(left + 1, int((stretch.end + shift) / span_s * _COLUMNS))
        top, bottom = rows.start // scale, -(-rows.stop // scale)
        image[top:bottom, max(0, left) : right] = (*to_rgb(COLOURS[stretch.use]), 1.0)


def _steps(job: Job) -> Figure | None:
    """How far training had come, over time."""
    history, told = job.history, job.account
    if not told.steps:
        return None
    figure, axes = _figure(2.9)
    for generation in history.generations:
        steps = told.steps.get(generation.number)
        first, last = generation.first_beat, generation.last_beat
        if steps is None or first is None or last is None:
            continue
        line = [(first, steps.first), *_points(generation.readings, steps), (last, steps.last)]
        times, values = zip(*((at - history.started_at, value) for at, value in sorted(line)), strict=True)
        axes.plot(times, values, color=COLOURS[Use.STEPS], linewidth=1.6, marker="o", markersize=2)
    for loss in told.losses[-_MAX_MARKS:]:
        axes.axvline(loss.at_s, color=COLOURS[Use.STOPPED], linewidth=0.7, alpha=0.6 if len(told.losses) < 60 else 0.2)
    axes.set_ylabel("step")
    axes.set_xlim(0, history.wall_s)
    axes.grid(axis="y", linewidth=0.6)
    _time_axis(axes, history.wall_s)
    return figure


def _points(readings: Any, steps: Steps) -> Iterator[tuple[float, int]]:
    for reading in readings:
        value = reading.step if reading.step is not None else steps.first + reading.ticks - 1
        if reading.last_beat is not None and steps.first <= value <= steps.last:
            yield reading.last_beat, value


def _recoveries(job: Job) -> Figure | None:
    """Each recovery by phase."""
    losses = [(index, loss) for index, loss in enumerate(job.account.losses, start=1) if loss.recovery_s is not None]
    if not losses:
        return None
    figure, axes = _figure(2.9)
    places = [index for index, _ in losses]
    base = numpy.zeros(len(losses))
    uses = [use for use in Use if any(use in loss.phases_s for _, loss in losses)]
    for use in uses:
        values = numpy.array([loss.phases_s.get(use, 0.0) for _, loss in losses])
        axes.bar(places, values, bottom=base, width=0.8 if len(losses) < 80 else 1.0, color=COLOURS[use])
        base += values
    axes.set_xlabel("incident")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0.4, len(job.account.losses) + 0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value) if value else "0"))
    axes.grid(axis="y", linewidth=0.6)
    _legend(figure, uses)
    return figure


def _causes(job: Job) -> Figure | None:
    """What was lost by each cause, and what it went for."""
    sums = _by_cause(job.account)
    if not sums:
        return None
    figure, axes = _figure(0.9 + 0.34 * len(sums))
    names = list(sums)
    base = numpy.zeros(len(names))
    uses = [use for use in Use if any(use in spent for spent in sums.values())]
    for use in uses:
        values = numpy.array([sums[name].get(use, 0.0) for name in names])
        axes.barh(names, values, left=base, height=0.7, color=COLOURS[use])
        base += values
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.6)
    _time_axis(axes, float(base.max()), "lost")
    _legend(figure, uses)
    return figure


def _by_cause(told: Account) -> dict[str, dict[Use, float]]:
    sums: dict[str, dict[Use, float]] = {cause: defaultdict(float) for cause in told.lost_by_cause()}
    for loss in told.losses:
        for use, spent in loss.by_use.items():
            sums[loss.cause][use] += spent
    return sums


def _time_axis(axes: Any, span_s: float, label: str = "time since the start") -> None:
    axes.set_xlabel(label)
    tick_s = next((tick_s for tick_s in _TICKS_S if span_s / tick_s <= _MOST_TICKS), None)
    unit_s, unit = 0, ""
    if tick_s is not None and span_s >= tick_s:
        axes.xaxis.set_major_locator(MultipleLocator(tick_s))
        unit_s, unit = next(found for found in _UNITS if tick_s % found[0] == 0)

    def told(value: float, _: int) -> str:
        if not value:
            return "0"
        return f"{value / unit_s:.0f} {unit}" if unit_s else seconds(value)

    axes.xaxis.set_major_formatter(FuncFormatter(told))


def _legend(figure: Figure, uses: list[Use]) -> None:
    handles = [Patch(color=COLOURS[use], label=NAMES[use]) for use in uses]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(6, max(1, len(handles))), fontsize=8.5)
