"""The tables of a report, as cells of text; how they are shown is up to :mod:`.text` and :mod:`.html`."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ftlaunch.heartbeat.watching.verdicts import rank_ranges
from ftlaunch.launcher.history.goodput import GOOD, Loss, Use
from ftlaunch.launcher.history.together import Job
from ftlaunch.launcher.history.wording import NAMES, percent
from ftlaunch.launcher.journal.failure_report import clean, describe_code
from ftlaunch.launcher.journal.incident import Incident, RankEnd
from ftlaunch.launcher.wording import counted, seconds

_RANGES_CHARS = 300
_MOST_ORIGINS = 20


@dataclass(frozen=True)
class Table:
    """Cells by row. ``numbers``: the columns that are aligned to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


def facts(job: Job) -> list[tuple[str, str]]:
    """What ran, where, and how it ended."""
    history = job.history
    hosts = list(dict.fromkeys(node.history.host for node in job.nodes if node.history.host))
    rows = [
        ("command", clean(shlex.join(history.command))),
        ("job", clean(history.job_id)),
        ("nodes", _nodes(job) + (f", records of {counted(len(job.nodes), 'agent')}" if len(job.nodes) > 1 else "")),
        ("ranks", str(_world_size(job))),
        ("hosts", clean(", ".join(hosts[:8])) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")),
        ("started", history.started[:19].replace("T", " ") + (" UTC" if history.started.endswith("+00:00") else "")),
        ("ended", ending(job)),
        ("records", clean(history.place)),
    ]
    return [(name, value) for name, value in rows if value]


def ending(job: Job) -> str:
    """``after 412 s with code 0: all ranks succeeded``"""
    history = job.history
    wall = seconds(history.wall_s)
    if not history.finished:
        return f"not yet, or the agent was lost; the records reach {wall}"
    reason = f": {clean(history.reason)}" if history.reason else ""
    return f"after {wall} with code {history.exit_code}{reason}"


def time_table(job: Job) -> Table:
    """Where the time went."""
    told = job.account
    rows = []
    for use, spent in told.by_use.items():
        share = spent / told.wall_s if told.wall_s > 0 else 0.0
        owed = sum(loss.by_use.get(use, 0.0) for loss in told.losses)
        rows.append(
            (NAMES[use], seconds(spent), percent(share), seconds(owed) if owed and use not in GOOD[:1] else "-")
        )
    return Table(("what for", "time", "share", "owed to incidents"), tuple(rows), frozenset({1, 2, 3}))


def cause_table(job: Job) -> Table:
    """What it was lost by."""
    repeated: dict[str, float] = defaultdict(float)
    recovery: dict[str, list[float]] = defaultdict(list)
    for loss in job.account.losses:
        repeated[loss.cause] += loss.by_use.get(Use.REPEATED, 0.0)
        if loss.recovery_s is not None:
            recovery[loss.cause].append(loss.recovery_s)
    rows = tuple(
        (
            cause,
            str(count),
            seconds(lost),
            percent(lost / job.account.wall_s if job.account.wall_s > 0 else 0.0),
            seconds(sum(recovery[cause]) / len(recovery[cause])) if recovery[cause] else "-",
            seconds(repeated[cause]) if repeated[cause] else "-",
        )
        for cause, (count, lost) in job.account.lost_by_cause().items()
    )
    head = ("cause", "incidents", "lost", "of the run", "mean recovery", "repeated steps")
    return Table(head, rows, frozenset({1, 2, 3, 4, 5}))


def incident_table(job: Job) -> Table:
    """One row for each incident."""
    rows = tuple(
        (
            str(index),
            job.wall_time(loss.at_s),
            str(loss.incident.generation),
            origin(loss),
            loss.cause,
            seconds(loss.recovery_s) if loss.recovery_s is not None else "-",
            str(loss.repeated_steps),
            seconds(loss.lost_s),
            reason(loss),
        )
        for index, loss in enumerate(job.account.losses, start=1)
    )
    head = ("#", "at", "generation", "began on", "cause", "recovery", "steps again", "lost", "reason")
    return Table(head, rows, frozenset({0, 2, 5, 6, 7}))


def origin(loss: Loss) -> str:
    """``rank 3 on node7``"""
    cause = loss.incident.cause
    rank = "" if (number := first_rank(loss)) is None else f"rank {number}"
    return clean(" on ".join(part for part in (rank, cause.host) if part)) or "-"


def first_rank(loss: Loss) -> int | None:
    """Which rank brought the generation down."""
    told = loss.diagnosed.rank if loss.diagnosed is not None else None
    return loss.incident.cause.rank if told is None else told


def reason(loss: Loss) -> str:
    """The diagnosis, else what was seen; and whether a drill had brought it about."""
    drilled = f"drill ({', '.join(dict.fromkeys(loss.drills))}): " if loss.drills else ""
    return clean(drilled) + _reason(loss)


def _reason(loss: Loss) -> str:
    if loss.diagnosed is None or not loss.diagnosed.sentence:
        return clean(loss.incident.cause.reason)
    unsure = loss.diagnosed.confidence not in ("", "certain")
    return clean(loss.diagnosed.sentence + (f" ({loss.diagnosed.confidence})" if unsure else ""))


def origin_table(job: Job) -> Table:
    """Ranks that began more than their share."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for loss in job.account.losses:
        if first_rank(loss) is not None:
            found[origin(loss)][loss.cause] += 1
    ordered = sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))[:_MOST_ORIGINS]
    rows = tuple(
        (where, str(causes.total()), ", ".join(f"{count} {cause}" for cause, count in causes.most_common()))
        for where, causes in ordered
    )
    return Table(("began on", "incidents", "causes"), rows, frozenset({1}))


def node_table(job: Job) -> Table:
    """One row for each node whose records were given."""
    rows = []
    for node in job.nodes:
        lived = [item for item in node.history.generations if item.slots]
        ranks = rank_ranges(rank for item in lived for rank in item.ranks)
        # By rank: several agents may share a host.
        here = {(item.number, rank) for item in lived for rank in item.ranks}
        began = sum((loss.incident.generation, first_rank(loss)) in here for loss in job.account.losses)
        rows.append((clean(node.history.host) or "-", _short(ranks) or "-", str(len(lived)), str(began)))
    return Table(("host", "ranks", "generations", "incidents begun"), tuple(rows), frozenset({2, 3}))


def phase_list(loss: Loss) -> str:
    """``noticing 0.4 ms, stopping ranks 12 ms, …``"""
    return ", ".join(f"{NAMES[use]} {seconds(spent)}" for use, spent in loss.phases_s.items())


def consequences(incident: Incident) -> list[str]:
    """What became of all ranks, those with the same end together; a few lines, whatever their number."""
    groups: dict[str, list[RankEnd]] = defaultdict(list)
    for end in incident.consequences:
        groups[f"stopped by ftlaunch ({end.how})" if end.stopped_by_launcher else describe_code(end.exit_code)].append(
            end
        )
    lines = []
    for how, ends in sorted(groups.items(), key=lambda item: min(end.rank for end in item[1])):
        word = "rank" if len(ends) == 1 else "ranks"
        lines.append(f"{word} {_short(rank_ranges(end.rank for end in ends))}: {clean(how)}")
    return lines


def evidence(incident: Incident) -> Iterable[str]:
    """Blocks of text: what the rank said, and what was found out about it."""
    cause = incident.cause
    if cause.traceback:
        yield clean(cause.traceback.strip("\n"))
    elif cause.exception:
        yield clean(f"{cause.exception}: {cause.message}")
    yield from (clean(block.strip("\n")) for block in cause.evidence)


def _short(ranges: str) -> str:
    return ranges if len(ranges) <= _RANGES_CHARS else ranges[:_RANGES_CHARS].rpartition(",")[0] + ", …"


def _nodes(job: Job) -> str:
    most = max((item.nodes for item in job.history.generations), default=1)
    return counted(most, "node") if most > 1 or len(job.nodes) > 1 else ""


def _world_size(job: Job) -> int:
    told = max((item.world_size or 0 for item in job.history.generations), default=0)
    return told or job.ranks
