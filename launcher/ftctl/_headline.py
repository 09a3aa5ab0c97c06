"""What stands above and below the rows of ``ftctl status``, as plain lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftlaunch.launcher.ftctl import _format
from ftlaunch.launcher.wording import shortened

_WIDTH = 160
_BAR = 30
_LIMITS_SHOWN = 8
_SLOW_SHOWN = 2

Status = Mapping[str, Any]


def headline(status: Status) -> list[str]:
    """The job in a few lines: where it is, what it has, what happened last."""
    generation = f"generation {status['generation']}" if status["generation"] >= 0 else "no generation yet"
    lines = [
        f"job {shortened(str(status['job'] or '-'), 60)}   {generation}   "
        f"{status['phase']} for {_format.duration(status['phase_s'])}   up {_format.duration(status['up_s'])}",
        f"{_nodes(status)}   {_ranks(status)}   {_standbys(status)}   {_restarts(status)}",
    ]
    if status.get("trouble"):
        lines.append(f"trouble: {shortened(status['trouble'], _WIDTH)}; below is what it said last")
    if status.get("ending"):
        lines.append(f"ending: {shortened(status['ending'], _WIDTH)}")
    lines += [shortened(f"left out: {out['name']}, {out['why']}", _WIDTH) for out in status.get("excluded", ())]
    cause = status.get("last_cause")
    if cause:
        lines.append(_cause(cause))
    slow = [rank for rank in status["ranks"] if rank["straggles"]]
    lines += [f"slow: rank {rank['rank']} {shortened(rank['straggles'], _WIDTH)}" for rank in slow[:_SLOW_SHOWN]]
    if not status["listening"]:
        lines.append("heartbeats are off (--heartbeat off): only deaths are seen")
    return lines


def _nodes(status: Status) -> str:
    nodes = status["nodes"]
    total = nodes[0].get("nodes") if nodes else None
    if total and total != len(nodes):
        return f"{len(nodes)} of {total} nodes shown"
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)}"


def _ranks(status: Status) -> str:
    count = status["world_size"] or len(status["ranks"])
    return f"{count} rank{'s' * (count != 1)}"


def _standbys(status: Status) -> str:
    standby = status["standby"]
    if standby["mode"] == "off":
        return "standbys off"
    return f"standbys {standby['ready']} of {standby['wanted']} ready"


def _restarts(status: Status) -> str:
    counted = status["restarts_counted"]
    if status["restarts"] == 0:
        return f"no restart yet ({status['restart_limit']})"
    free = status["restarts"] - counted
    return f"restarts {counted} ({status['restart_limit']})" + (f" and {free} not counted" if free > 0 else "")


def _cause(cause: Mapping[str, Any]) -> str:
    who = f"rank {cause['rank']} " if cause["rank"] is not None else ""
    at = f" at {str(cause['time'])[11:19]} UTC" if cause["time"] else ""
    text = f"last cause: {who}{cause['reason']} (generation {cause['generation']}{at}); {cause['decision_reason']}"
    return shortened(text, _WIDTH)


def limits(status: Status) -> Iterator[str]:
    """One line for each limit that is of interest: seen, given, or always there."""
    shown = [limit for limit in status["limits"] if limit["seen"] or limit["name"] in ("step", "init")]
    shown += [limit for limit in status["limits"] if limit not in shown and limit["origin"] == "configured"]
    for limit in shown[:_LIMITS_SHOWN]:
        seconds = "none" if limit["seconds"] is None else _format.duration(limit["seconds"])
        yield f"limit of {shortened(limit['name'], 24)}: {seconds} ({_origin(limit)})"
    if len(shown) > _LIMITS_SHOWN:
        yield f"and {len(shown) - _LIMITS_SHOWN} more: --json"


def _origin(limit: Mapping[str, Any]) -> str:
    seen = ""
    if limit["seen"]:
        longest = _format.duration(limit["longest_s"])
        seen = f", longest silence {longest} of {_format.count(limit['seen'])}"
    return f"{limit['origin']}{seen}"


def bar(status: Status) -> str:
    """The progress bar in plain text; empty when no script tells a step."""
    progress = status["progress"]
    if progress is None:
        return ""
    step, total = progress["step"], progress["total"]
    pace = _format.rate(progress["step_rate"])
    if total is None:
        return f"step {_format.count(step)}   {pace}"
    filled = round(_BAR * fraction(progress))
    eta = f"   {_format.duration(progress['eta_s'])} left" if progress["eta_s"] is not None else ""
    drawn = "#" * filled + "." * (_BAR - filled)
    return f"[{drawn}] {fraction(progress):.0%}   step {_format.count(step)} of {_format.count(total)}   {pace}{eta}"


def fraction(progress: Mapping[str, Any]) -> float:
    """How much is done, 0 to 1."""
    return min(1.0, progress["step"] / progress["total"]) if progress["total"] else 0.0


def plain(status: Status, table: Sequence[str]) -> list[str]:
    """Everything as text, the table's lines in the middle."""
    drawn = bar(status)
    return [*headline(status), *([drawn] if drawn else []), "", *table, "", *limits(status)]
