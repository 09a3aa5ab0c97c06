"""The results as Markdown, for people: medians of every item, what agreeing costs by size, phases on two nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench_lib.items import ITEMS, Item
from bench_lib.results import Results

_SCALE = (
    ("form_s", "first generation, s", ".2f"),
    ("reform_s", "again after a failure, s", ".2f"),
    ("reform_messages_per_agent", "messages per agent", ".1f"),
    ("reform_writes", "etcd writes", ".0f"),
    ("reform_writes_per_agent", "per node", ".2f"),
    ("reform_received_kb_per_agent", "kB to each agent", ".1f"),
    ("reform_agent_cpu_ms", "processor time of an agent, ms", ".1f"),
    ("reform_etcd_cpu_s", "of etcd, s", ".2f"),
)
_PHASES = (
    ("known_ms", "all agents know"),
    ("agreed_ms", "all have agreed"),
    ("stopped_ms", "all old ranks are gone"),
    ("started_ms", "all new ranks run"),
    ("first_beat_ms", "first beat of all"),
    ("agreeing_ms", "agreeing alone"),
)


def markdown(results: Results) -> str:
    """Return the page."""
    about = results.about
    lines = [
        "# Results of the bench",
        "",
        "Written by `./scripts/bench`; what is measured how is in docs/bench.md.",
        "",
    ]
    machine = f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}"
    lines += [f"{machine}; {results.versions()}."]
    measured = [item for item in ITEMS if any(sample.item == item.letter for sample in results.samples)]
    lines += ["", *_medians(results, [item for item in measured if item.letter != "j"])]
    if any(item.letter == "j" for item in measured):
        lines += ["", "## (j) by the number of nodes", "", *_by_size(results)]
    if any(item.letter == "i" for item in measured):
        lines += ["", "## (i) pair by pair", "", *_pairs(results)]
    with_phases = [item for item in measured if item.letter in "klm"]
    if with_phases:
        title = "## (k to m) phases: when the last agent was so far, ms after the fault (medians)"
        lines += ["", title, "", *_phases(results, with_phases)]
    return "\n".join(lines) + "\n"


def _medians(results: Results, items: Sequence[Item]) -> list[str]:
    rows = []
    for item in items:
        base = results.median(item.letter, item.contenders[0].name, item.key)
        for contender in item.contenders:
            values = results.values(item.letter, contender.name, item.key)
            if values:
                middle = results.median(item.letter, contender.name, item.key) or 0.0
                ratio = f"{middle / base:.2f}" if base else ""
                spread = f"{min(values):.4g} … {max(values):.4g}"
                figures = (f"{middle:.4g} {item.unit}", ratio, spread, str(len(values)))
                rows.append((f"{item.letter}. {item.title}", contender.name, *figures))
    return _table(("item", "launcher", "median", "ratio", "smallest … largest", "samples"), rows)


def _pairs(results: Results) -> list[str]:
    """A machine's speed drifts by more than standbys could cost; two neighbouring samples drift together."""
    (item,) = (item for item in ITEMS if item.letter == "i")
    ratios = results.paired(item)
    if not ratios:
        return ["No pair yet."]
    names = [contender.name for contender in item.contenders]
    told = (
        f"Time of a step, {names[0]} over {names[1]}, in {len(ratios)} pairs of neighbouring samples: median "
        f"{statistics.median(ratios):.3f}, mean {statistics.mean(ratios):.3f} ({min(ratios):.3f} … {max(ratios):.3f})."
    )
    used = [results.median("i", name, "launcher_cpu_percent") for name in names]
    if None not in used:
        shown = " and ".join(f"{percent:.2f} %" for percent in used)
        told += f" Processor time of all that is no rank, after the warm-up: {shown} of a core."
    return [told]


def _by_size(results: Results) -> list[str]:
    (item,) = (item for item in ITEMS if item.letter == "j")
    rows = []
    for contender in item.contenders:
        size = results.median("j", contender.name, "nodes")
        if size is not None:
            found = [results.median("j", contender.name, figure) for figure, _, _ in _SCALE]
            cells = (format(value or 0.0, form) for value, (_, _, form) in zip(found, _SCALE, strict=True))
            rows.append((f"{size:,.0f}", *cells))
    return _table(("nodes", *(title for _, title, _ in _SCALE)), rows)


def _phases(results: Results, items: Sequence[Item]) -> list[str]:
    rows = []
    for item in items:
        for contender in item.contenders:
            found = [results.median(item.letter, contender.name, figure) for figure, _ in _PHASES]
            cells = [f"{value:.0f}" for value in found if value is not None]
            if len(cells) == len(_PHASES):
                rows.append((f"{item.letter}. {item.title}", contender.name, *cells))
    return _table(("item", "launcher", *(title for _, title in _PHASES)), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
