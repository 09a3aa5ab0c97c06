"""The report as one HTML file that needs nothing else: no network, no script, readable in the light and in the dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from ftlaunch.launcher import __version__
from ftlaunch.launcher.history import tables
from ftlaunch.launcher.history.advice import advice
from ftlaunch.launcher.history.goodput import Loss
from ftlaunch.launcher.history.summary import summary_line
from ftlaunch.launcher.history.tables import Table
from ftlaunch.launcher.history.text import LIMITS
from ftlaunch.launcher.history.together import Job
from ftlaunch.launcher.history.wording import percent
from ftlaunch.launcher.journal.failure_report import clean
from ftlaunch.launcher.wording import counted, seconds

_BLOCK_CHARS = 20_000
_FEW = 16
NO_PICTURES = "Pictures need matplotlib: pip install 'ftlaunch[report]', then make the report anew."
_CAPTIONS = {
    "timeline": "What every rank did. A cross marks the rank that began an incident; what is shorter than a pixel is "
    "drawn one pixel wide.",
    "steps": "How far training had come; red lines are incidents.",
    "recoveries": "Each recovery by phase, from the failure to the first beat after it.",
    "causes": "What was lost by each cause, and what it went for.",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --page: #ffffff; --panel: #f5f6f8; --line: #d3d7dd; --dim: #5b626c;
  --accent: #1f6fb2; --good: #1d7f55; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --page: #15171a; --panel: #1f2227; --line: #3a3f47;
  --dim: #a0a7b2; --accent: #6db3ee; --good: #58c796; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 8px; }
p { margin: 6px 0; }
.dim, figcaption, dt { color: var(--dim); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 12px 0; }
dd { margin: 0; overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px;
  min-width: 110px; }
.tile b { display: block; font-size: 22px; font-weight: 600; }
.tile.good b { color: var(--good); }
figure { margin: 14px 0; overflow-x: auto; }
figure svg { width: 100%; min-width: 760px; height: auto; display: block; font-family: system-ui, sans-serif; }
figcaption { position: sticky; left: 0; }
.scroll { overflow: auto; max-height: 75vh; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { position: sticky; top: 0; background: var(--panel); text-align: left; font-weight: 600; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
td { white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; }
td.w { min-width: 260px; white-space: normal; overflow-wrap: anywhere; }
details { border-bottom: 1px solid var(--line); padding: 6px 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary b { color: var(--accent); }
pre { background: var(--panel); padding: 10px; border-radius: 8px; overflow: auto; max-height: 420px; font-size: 13px; }
"""


def render_html(job: Job, pictures: Mapping[str, str] | None) -> str:
    """The page. ``pictures`` by name as ``<svg>`` elements; ``None`` where they could not be drawn."""
    title = escape(job.history.run_id or "run")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title} - ftlaunch</title><style>{_STYLE}</style></head><body><main>'
    )
    return "\n".join([head, *_body(job, pictures), "</main></body></html>"]) + "\n"


def _body(job: Job, pictures: Mapping[str, str] | None) -> Iterator[str]:
    yield from _top(job)
    helped = advice(job.history, job.account)
    if helped:
        yield "<h2>What would have helped</h2><ul>"
        yield from (f"<li>{escape(sentence)}</li>" for sentence in helped)
        yield "</ul>"
    yield "<h2>Timeline</h2>"
    if pictures is None:
        yield f'<p class="dim">{escape(NO_PICTURES)}</p>'
    yield from _pictures(pictures, "timeline", "steps")
    yield "<h2>Where the time went</h2>"
    yield from _table(tables.time_table(job))
    if len(job.nodes) > 1:
        yield "<h2>Nodes</h2>"
        opened = " open" if len(job.nodes) <= _FEW else ""
        yield f"<details{opened}><summary>{counted(len(job.nodes), 'node')}</summary>"
        yield from _table(tables.node_table(job))
        yield "</details>"
    if job.account.losses:
        yield from _incidents(job, pictures)
    yield "<h2>How this was counted</h2><ul class='dim'>"
    yield from (f"<li>{escape(sentence)}</li>" for sentence in LIMITS)
    yield f"</ul><p class='dim'>ftlaunch {__version__}</p>"


def _top(job: Job) -> Iterator[str]:
    history, told = job.history, job.account
    yield f"<h1>{escape(history.run_id or 'run')}</h1><p>{escape(summary_line(history, told))}</p>"
    steps = f"{told.steps_done:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") if told.steps else "-"
    tiles = (
        ("training goodput", percent(told.training), "good"),
        ("infrastructure goodput", percent(told.infrastructure), "good"),
        ("wall time", seconds(history.wall_s), ""),
        ("steps", steps, ""),
        ("restarts", str(len(history.restarts)), ""),
        ("lost by incidents", seconds(told.lost_s) if told.losses else "0 s", ""),
    )
    yield '<div class="tiles">'
    yield from (
        f'<div class="tile {kind}"><b>{escape(value)}</b><span class="dim">{name}</span></div>'
        for name, value, kind in tiles
    )
    yield "</div><dl>"
    yield from (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in tables.facts(job))
    yield "</dl>"


def _incidents(job: Job, pictures: Mapping[str, str] | None) -> Iterator[str]:
    yield "<h2>Time lost by cause</h2>"
    yield from _table(tables.cause_table(job))
    yield from _pictures(pictures, "causes")
    yield f"<h2>{counted(len(job.account.losses), 'incident')}</h2>"
    yield from _pictures(pictures, "recoveries")
    yield from _table(tables.incident_table(job))
    origins = tables.origin_table(job)
    if origins.rows:
        yield "<h2>Where they began</h2>"
        yield from _table(origins)
    yield "<h2>Each incident</h2>"
    for index, loss in enumerate(job.account.losses, start=1):
        yield from _incident(index, loss, job)


def _incident(index: int, loss: Loss, job: Job) -> Iterator[str]:
    incident = loss.incident
    where = f"generation {incident.generation}, {tables.origin(loss)}"
    yield (
        f"<details><summary><b>#{index}</b> {job.wall_time(loss.at_s)} {escape(loss.cause)}, {escape(where)}: "
        f"{escape(tables.reason(loss))}</summary>"
    )
    rows = (
        ("seen", clean(incident.cause.reason) if loss.diagnosed is not None else ""),
        ("hint", clean(loss.diagnosed.hint) if loss.diagnosed is not None else ""),
        ("step", "" if incident.cause.step is None else str(incident.cause.step)),
        ("place", clean(incident.cause.place)),
        ("decision", clean(f"{incident.decision}: {incident.decision_reason}" if incident.decision else "")),
        ("recovery", "" if loss.recovery_s is None else f"{seconds(loss.recovery_s)}: {tables.phase_list(loss)}"),
        ("phases", tables.phase_list(loss) if loss.recovery_s is None else ""),
        ("lost", f"{seconds(loss.lost_s)}, with {counted(loss.repeated_steps, 'step')} run again"),
        ("ranks", "; ".join(tables.consequences(incident))),
    )
    yield "<dl>"
    yield from (f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)
    yield "</dl>"
    yield from (f"<pre>{escape(_limited(block))}</pre>" for block in tables.evidence(incident) if block.strip())
    yield "</details>"


def _limited(block: str) -> str:
    return block if len(block) <= _BLOCK_CHARS else f"{block[:_BLOCK_CHARS]}\n… {len(block)} characters in all"


def _table(table: Table) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    yield from (
        f'<th class="{"n" if index in table.numbers else ""}">{escape(name)}</th>'
        for index, name in enumerate(table.head)
    )
    yield "</tr></thead><tbody>"
    last = len(table.head) - 1
    for row in table.rows:
        cells = (
            f'<td class="{"n" if index in table.numbers else "w" if index == last else ""}">{escape(cell)}</td>'
            for index, cell in enumerate(row)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _pictures(pictures: Mapping[str, str] | None, *names: str) -> Iterator[str]:
    for name in names:
        if pictures and name in pictures:
            yield f"<figure>{pictures[name]}<figcaption>{escape(_CAPTIONS[name])}</figcaption></figure>"
