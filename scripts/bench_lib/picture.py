"""Draw the results: ``picture.py RESULTS.json PICTURE.svg``. Runs where matplotlib is installed, and needs no more."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {
    "ftlaunch": "#0b7a53",
    "ftlaunch (no standby)": "#7cc4a4",
    "torchrun": "#c0562a",
    "NVRx 0.4.1": "#5b5b8c",
    "container restart": "#9a9a9a",
}
SECONDS = (
    ("a", "wall_s", "empty launch"),
    ("b", "resume_s", "a rank is killed"),
    ("c", "resume_s", "a rank raises"),
    ("d", "resume_s", "killed, the survivor is stopped"),
    ("e", "resume_s", "killed, the survivor ignores SIGTERM"),
)


def bars(axes: Any, rows: list[tuple[str, dict[str, float]]], unit: str) -> None:
    """Draw a group of horizontal bars per row, the first row on top, each with its value."""
    place = 0.0
    ticks = []
    for title, values in rows:
        ticks.append((place + (len(values) - 1) / 2, title))
        for name, value in values.items():
            axes.barh(place, value, height=0.86, color=COLOURS.get(name, "#444444"))
            axes.text(value, place, f" {value:.3g} {unit}", va="center", fontsize=8)
            place += 1
        place += 0.8
    axes.set_yticks([at for at, _ in ticks], [title for _, title in ticks], fontsize=9)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def rows_of(medians: dict[str, Any], wanted: tuple[tuple[str, str, str], ...]) -> list[tuple[str, dict[str, float]]]:
    """Return the rows for which there are numbers."""
    found = []
    for letter, figure, title in wanted:
        values = {name: figures[figure] for name, figures in medians.get(letter, {}).items() if figure in figures}
        if values:
            found.append((title, values))
    return found


SCALE = (
    ("seconds until the last agent knows", (("form_s", "first generation"), ("reform_s", "after a failure"))),
    ("etcd writes, after a failure", (("reform_writes", "all nodes together"),)),
    (
        "per agent, after a failure",
        (("reform_messages_per_agent", "messages"), ("reform_writes_per_agent", "etcd writes")),
    ),
)


def draw_scale(medians: dict[str, Any], about: dict[str, Any], target: Path) -> None:
    """Draw what agreeing costs by the number of nodes: both axes logarithmic, the last panel from zero."""
    crowds = sorted(medians.get("j", {}).values(), key=lambda figures: figures.get("nodes", 0))
    crowds = [figures for figures in crowds if "nodes" in figures]
    if not crowds:
        return
    nodes = [figures["nodes"] for figures in crowds]
    figure, panels = pyplot.subplots(1, len(SCALE), figsize=(12, 3.8), layout="constrained")
    for axes, (title, curves) in zip(panels, SCALE, strict=True):
        for (name, label), colour in zip(curves, ("#0b7a53", "#c0562a"), strict=False):
            axes.plot(nodes, [figures[name] for figures in crowds], "o-", color=colour, label=label)
        axes.set_xscale("log")
        axes.set_xticks(nodes, [f"{count:,.0f}" for count in nodes])
        axes.minorticks_off()
        axes.set_xlabel("nodes")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    for axes in panels[:2]:
        axes.set_yscale("log")
    panels[2].set_ylim(bottom=0)
    figure.suptitle(f"agents without ranks, all on one machine with their etcd: {about['cpu']}, {about['cores']} cores")
    save(figure, target)


def save(figure: Any, target: Path) -> None:
    """Write the picture; without the date, so that the same numbers give the same file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def main(source: Path, target: Path) -> None:
    """Draw seconds on the left, goodput on the right; and a second picture, NAME-scale.svg."""
    document = json.loads(source.read_text())
    medians, about = document["medians"], document["about"]
    draw_scale(medians, about, target.with_stem(f"{target.stem}-scale"))
    times = rows_of(medians, SECONDS)
    shares = rows_of(
        medians, (("h", "training_percent", "training"), ("h", "infrastructure_percent", "infrastructure"))
    )
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.2), width_ratios=(3, 2), layout="constrained")
    bars(left, times, "s")
    left.set_xscale("log")
    left.set_xlim(0.05, 200)
    left.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    left.set_title("seconds to the first new step; empty launch: to its end (log scale)", fontsize=10)
    bars(right, shares, "%")
    right.set_xlim(0, 112)
    right.set_title("goodput: 2,000 steps, five faults", fontsize=10)
    used = {name for _, values in [*times, *shares] for name in values}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for name, colour in COLOURS.items() if name in used]
    names = [name for name in COLOURS if name in used]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)
    machine = (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB; PyTorch {about['versions']['torch']} on CPU"
    )
    figure.suptitle(f"two ranks, medians; {machine}", fontsize=9)
    save(figure, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
