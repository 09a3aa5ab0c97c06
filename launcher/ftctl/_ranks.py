"""The rows of ``ftctl status``: ranks one by one while there is room, else alike ones together. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.heartbeat.watching.verdicts import rank_ranges
from ftlaunch.launcher.ftctl import _format
from ftlaunch.launcher.wording import shortened

HEADER = ("RANK", "PID", "STATE", "SECTION", "STEP", "RATE", "SILENT / LIMIT", "MEMORY", "FAILED", "LAST CAUSE")
NUMBERS = frozenset({"PID", "STEP", "RATE", "MEMORY", "FAILED"})
_CAUSE_WIDTH = 60
_NAME_WIDTH = 24
_RANGES_WIDTH = 28
_WORRY = 0.5
_ALARM = 0.8
_PLAIN = frozenset({"running", "finished", "starting", "stopping", "not started"})
_ORIGINS = {"learnt": "", "default": "*", "configured": "="}
"""Behind a limit. The legend below the table tells."""
LEGEND = "limits: * default, not learnt yet; = given on the command line"

Rank = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line; ``mood``: ``""``, ``dim``, ``worry`` or ``alarm``."""

    cells: tuple[str, ...]
    mood: str = ""


def header(with_hosts: bool) -> tuple[str, ...]:
    """Column names."""
    return (*HEADER[:1], "NODE", *HEADER[1:]) if with_hosts else HEADER


def rows(ranks: Sequence[Rank], room: int, with_hosts: bool = False) -> list[Row]:
    """At most about ``room`` rows. Those that stand out are shown by themselves even when the others are together."""
    if len(ranks) <= room:
        return [_single(rank, with_hosts) for rank in ranks]
    single = max(0, room - len(_groups(ranks)))
    outstanding = sorted((rank for rank in ranks if severity(rank) > 0), key=lambda rank: -severity(rank))[:single]
    chosen = {rank["rank"] for rank in outstanding}
    rest = [rank for rank in ranks if rank["rank"] not in chosen]
    shown = [_single(rank, with_hosts) for rank in sorted(outstanding, key=lambda rank: int(rank["rank"]))]
    return shown + [_group(group, with_hosts) for group in _groups(rest)]


def severity(rank: Rank) -> float:
    """How much a rank deserves to be looked at: 0 for one that is like all others should be."""
    score = 0.0
    if rank["state"] not in _PLAIN:
        score += 2.0
    if rank["straggles"]:
        score += 1.0
    used = _used(rank)
    return score + (used if used >= _WORRY else 0.0)


def _groups(ranks: Iterable[Rank]) -> list[list[Rank]]:
    """By state and section, in order of their first rank."""
    found: dict[tuple[str, str], list[Rank]] = {}
    for rank in ranks:
        found.setdefault((rank["state"], _section(rank)), []).append(rank)
    return list(found.values())


def _single(rank: Rank, with_hosts: bool) -> Row:
    cells = (
        str(rank["rank"]),
        *((shortened(str(rank["host"]), _NAME_WIDTH),) if with_hosts else ()),
        str(rank["pid"] or "-"),
        shortened(str(rank["state"]), _NAME_WIDTH) + (", slow" if rank["straggles"] else ""),
        _section(rank),
        _step(rank),
        _format.rate(rank["step_rate"]),
        _silence(rank),
        _format.size(rank["memory_bytes"]),
        str(rank["failures"] or "-"),
        shortened(rank["last_cause"] or "-", _CAUSE_WIDTH),
    )
    return Row(cells, _mood(rank))


def _group(ranks: Sequence[Rank], with_hosts: bool) -> Row:
    """Many ranks in one row: ranges, the median rate, the silence that is nearest to its limit."""
    first, worst = ranks[0], max(ranks, key=_used)
    hosts = len({rank["host"] for rank in ranks})
    steps = sorted(rank["step"] for rank in ranks if rank["step"] is not None)
    rates = [rank["step_rate"] for rank in ranks if rank["step_rate"]]
    memory = [rank["memory_bytes"] for rank in ranks if rank["memory_bytes"]]
    failures = sum(rank["failures"] for rank in ranks)
    step = "-" if not steps else _format.count(steps[0])
    if steps and steps[-1] != steps[0]:
        step += f"…{_format.count(steps[-1])}"
    cells = (
        f"{shortened(rank_ranges(rank['rank'] for rank in ranks), _RANGES_WIDTH)} ({len(ranks)})",
        *((f"{hosts} nodes" if hosts > 1 else shortened(str(first["host"]), _NAME_WIDTH),) if with_hosts else ()),
        "-",
        str(first["state"]),
        _section(first),
        step,
        _format.rate(statistics.median(rates)) if rates else "-",
        ("≤ " if worst["silence_s"] is not None else "") + _silence(worst),
        f"≤ {_format.size(max(memory))}" if memory else "-",
        str(failures or "-"),
        "-",
    )
    return Row(cells, max((_mood(rank) for rank in ranks), key=_MOODS.index))


_MOODS = ("dim", "", "worry", "alarm")


def _mood(rank: Rank) -> str:
    used = _used(rank)
    if used >= _ALARM or rank["state"] not in _PLAIN:
        return "alarm"
    if used >= _WORRY or rank["straggles"]:
        return "worry"
    return "dim" if rank["state"] in ("finished", "not started") else ""


def _used(rank: Rank) -> float:
    silence, limit = rank["silence_s"], rank["limit_s"]
    return silence / limit if silence is not None and limit else 0.0


def _section(rank: Rank) -> str:
    if rank["sections"]:
        return shortened(" > ".join(rank["sections"]), _NAME_WIDTH)
    if rank["limit_name"] == "unknown":
        return "?"
    if rank["beaten"]:
        return "step"
    return str(rank["phase"]) or "-"


def _step(rank: Rank) -> str:
    if rank["step"] is not None:
        return _format.count(rank["step"])
    # Optimizer steps that the hooks counted in this generation; the script tells none of its own.
    return f"{_format.count(rank['ticks'])} opt" if rank["ticks"] else "-"


def _silence(rank: Rank) -> str:
    age = rank["silence_s"] if rank["silence_s"] is not None else rank["beat_age_s"]
    if age is None:
        return "-"
    if rank["silence_s"] is None:
        return f"{_format.duration(age)} / -"
    limit = "none" if rank["limit_s"] is None else _format.duration(rank["limit_s"])
    return f"{_format.duration(age)} / {limit}{_ORIGINS.get(rank['limit_origin'], '')}"
