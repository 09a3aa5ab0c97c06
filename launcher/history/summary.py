"""One line for the end of every job. Pure."""

from __future__ import annotations

from collections import Counter

from ftlaunch.launcher.history.causes import cause_name
from ftlaunch.launcher.history.goodput import Account
from ftlaunch.launcher.history.model import History
from ftlaunch.launcher.history.wording import bare_percent, percent
from ftlaunch.launcher.wording import counted, seconds

_MOST_CAUSES = 4


def summary_line(history: History, account: Account) -> str:
    """``ran 412 s, 2000 steps, 3 restarts (2 SIGKILL, 1 exception), goodput 97.1 % training / …, 4.2 s lost``"""
    parts = [f"ran {seconds(history.wall_s)}"]
    if account.steps:
        parts.append(counted(account.steps_done, "step"))
    parts.append(_restarts(history))
    parts.append(_goodput(account))
    if account.losses and account.heard:
        parts.append(f"{seconds(account.lost_s)} lost")
    return ", ".join(part for part in parts if part)


def _restarts(history: History) -> str:
    restarts = history.restarts
    if not restarts:
        return "no restart"
    causes = Counter(
        cause_name(history.incidents[item.number]) for item in restarts if item.number in history.incidents
    )
    ordered = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) == 1:
        told = ordered[0][0]
    else:
        # One alone is named: "other" would be no shorter.
        most = _MOST_CAUSES if len(ordered) > _MOST_CAUSES + 1 else len(ordered)
        told = ", ".join(f"{count} {cause}" for cause, count in ordered[:most])
        rest = sum(count for _, count in ordered[most:])
        told += f", {rest} other" if rest else ""
    return f"{counted(len(restarts), 'restart')} ({told})"


def _goodput(account: Account) -> str:
    if account.infrastructure is None:
        return "goodput not known: no beat was heard"
    if account.training is None:
        return f"goodput {percent(account.infrastructure)} infrastructure (no steps were told or counted)"
    training, infrastructure = bare_percent(account.training), bare_percent(account.infrastructure)
    return f"goodput {training} % training / {infrastructure} % infrastructure"
