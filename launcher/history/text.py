"""The report as plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ftlaunch.launcher.history.advice import advice
from ftlaunch.launcher.history.summary import summary_line
from ftlaunch.launcher.history.tables import Table, cause_table, facts, incident_table, node_table, time_table
from ftlaunch.launcher.history.together import Job
from ftlaunch.launcher.wording import columns, shortened

_GAP = "  "
_CELL_WIDTH = 100
LIMITS = (
    "Steps run from one step before a generation's first beat to its last beat, saves and evaluations included.",
    "Training goodput counts each step once, infrastructure goodput also those that were run again, both of wall time.",
    "Step numbers are the script's own where it tells them. Otherwise optimizer steps are counted, and a generation is "
    "taken to go on from the last checkpoint that was heard of: then what was run again is an estimate.",
    "Times are each node's own; nodes are lined up by wall time for pictures only.",
)
"""How the numbers came about."""


def render_text(job: Job) -> str:
    """A page; two lines for each incident at most."""
    return "\n".join(_lines(job)) + "\n"


def _lines(job: Job) -> Iterator[str]:
    width = max(len(name) for name, _ in facts(job))
    yield f"run {job.history.run_id}"
    yield from (f"  {name:<{width}}  {value}" for name, value in facts(job))
    yield ""
    yield summary_line(job.history, job.account)
    yield from _section("where the time went", time_table(job))
    if len(job.nodes) > 1:
        yield from _section("nodes", node_table(job))
    if job.account.losses:
        yield from _section("lost by cause", cause_table(job))
        yield from _section("incidents", incident_table(job))
    helped = advice(job.history, job.account)
    if helped:
        yield from ("", "what would have helped")
        yield from (f"  - {sentence}" for sentence in helped)
    yield from ("", "how this was counted")
    yield from (f"  - {sentence}" for sentence in LIMITS)


def _section(title: str, table: Table) -> Iterator[str]:
    yield from ("", title)
    yield from (f"  {line}" for line in aligned(table))


def aligned(table: Table) -> list[str]:
    """Columns of equal width; what is too long is cut."""
    rows = [tuple(map(str.upper, table.head)), *table.rows]
    return columns([[shortened(cell, _CELL_WIDTH) for cell in row] for row in rows], table.numbers, _GAP)
