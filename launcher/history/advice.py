"""What would have helped a whole run: a few sentences, each with the number it rests on. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ftlaunch.launcher.history.goodput import Account, Loss, Use
from ftlaunch.launcher.history.model import History
from ftlaunch.launcher.wording import counted, seconds

_MATTERS = 0.005
"""Share of the wall time from which a loss is worth a sentence."""
_SLOW_SETUP_S = 2.0
_LONG_SILENCE_S = 10.0
_MANY_ON_ONE_HOST = 3
_SLOW_PHASES = (
    (Use.STOPPED, 1.0, "to stop the ranks, which handle SIGTERM and used their grace: see --kill-grace"),
    (Use.RECLAIMED, 2.0, "until the GPUs were free: look for other processes on them, and at the driver"),
    (Use.AGREED, 1.0, "to agree on the next generation: with a spare node nobody waits for a replacement"),
)
_Finding = tuple[float, str]


def advice(history: History, account: Account) -> list[str]:
    """Sentences, what would have saved most first; none when nothing was lost."""
    losses = [loss for loss in account.losses if not loss.drills]
    if len(losses) < len(account.losses):
        # What faults on purpose were lost by tells nothing of the job.
        account = replace(account, losses=tuple(losses))
    if not account.losses:
        return []
    found = [*_repeated(history, account), *_silence(account.losses), *_setup(history, account)]
    found += [*_slow_phases(account.losses), *_hosts(account.losses), *_exceptions(account.losses)]
    found += _hints(account.losses)
    if not account.heard:
        advised = "call ftlaunch.heartbeat.beat(step) in the training loop"
        found.append((0.0, f"No beat was heard, so goodput is not known and stalls are not seen: {advised}."))
    return [text for _, text in sorted(found, key=lambda item: -item[0])]


def _repeated(history: History, account: Account) -> Iterator[_Finding]:
    lost = _lost(account, Use.REPEATED)
    if lost < _MATTERS * account.wall_s:
        return
    again = [loss.repeated_steps for loss in account.losses if loss.repeated_steps]
    base = f"{counted(sum(again), 'step')} were run again, {seconds(lost)}"
    begins = {account.steps[item.number].first for item in history.generations if item.number in account.steps}
    if len(begins) == 1:
        rest = "save checkpoints, and resume from them (--checkpoint-dir)"
        yield lost, f"{base}: every generation began at step {begins.pop()}; {rest}."
    else:
        typical = f"{median(again):g} after a typical failure"
        yield lost, f"{base}, {typical}: checkpoints twice as often would have saved about half of it."


def _silence(losses: Sequence[Loss]) -> Iterator[_Finding]:
    stalls = [loss.by_use.get(Use.UNFINISHED, 0.0) for loss in losses if loss.incident.cause.kind == "stall"]
    if stalls and median(stalls) >= _LONG_SILENCE_S:
        seen = (
            f"{counted(len(stalls), 'stall')}, each silent for about {seconds(median(stalls))} before it counted as one"
        )
        yield sum(stalls), f"{seen}: a lower --hang-timeout, or --section-timeout for that section, sees it earlier."


def _setup(history: History, account: Account) -> Iterator[_Finding]:
    recovered = {loss.incident.generation: loss for loss in account.losses if loss.recovery_s is not None}
    following = [now for before, now in itertools.pairwise(history.generations) if before.number in recovered]
    lost = _lost(account, Use.RESUMED)
    typical = median([loss.phases_s.get(Use.RESUMED, 0.0) for loss in recovered.values()] or [0.0])
    if typical < _SLOW_SETUP_S or lost < _MATTERS * account.wall_s:
        return
    base = (
        f"{seconds(typical)} typically passed from the start of the ranks to their first step, {seconds(lost)} in all"
    )
    cold = sum(item.warm < item.slots for item in following)
    if cold:
        restarts = counted(len(following), "restart")
        yield lost, f"{base}; {cold} of {restarts} had no standby for every rank: see --standby and the events of it."
    else:
        rest = "its own set-up, loading the checkpoint, compiling"
        yield lost, f"{base}, although the imports were done: what is left is in the script ({rest})."


def _slow_phases(losses: Sequence[Loss]) -> Iterator[_Finding]:
    recovered = [loss for loss in losses if loss.recovery_s is not None]
    for use, limit_s, rest in _SLOW_PHASES:
        slow = [loss.phases_s[use] for loss in recovered if loss.phases_s.get(use, 0.0) >= limit_s]
        if slow:
            yield sum(slow), f"{counted(len(slow), 'recovery', 'recoveries')} took {seconds(median(slow))} {rest}."


def _hosts(losses: Sequence[Loss]) -> Iterator[_Finding]:
    """One host among several that began most of it."""
    hosts = Counter(loss.incident.cause.host for loss in losses if loss.incident.cause.host)
    if len(hosts) < 2:
        return
    host, count = hosts.most_common(1)[0]
    if count >= _MANY_ON_ONE_HOST and 2 * count > len(losses):
        lost = sum(loss.lost_s for loss in losses if loss.incident.cause.host == host)
        yield (
            lost,
            f"{count} of {len(losses)} incidents began on {host}: have it looked at, and leave it out meanwhile.",
        )


def _exceptions(losses: Sequence[Loss]) -> Iterator[_Finding]:
    causes = [loss.incident.cause for loss in losses]
    said = Counter((cause.exception, cause.place) for cause in causes if cause.exception and cause.place)
    for (exception, place), count in said.most_common(1):
        if count > 1:
            lost = sum(loss.lost_s for loss in losses if loss.incident.cause.place == place)
            yield lost, f"{exception} at {place} ended {count} generations: a fault of the script or of its data."


def _hints(losses: Sequence[Loss]) -> Iterator[_Finding]:
    """What the diagnoses advise, each once."""
    told = [(loss.diagnosed, loss.lost_s) for loss in losses if loss.diagnosed is not None and loss.diagnosed.hint]
    counts = Counter((diagnosed.kind, diagnosed.hint) for diagnosed, _ in told)
    for (kind, hint), count in counts.items():
        lost = sum(lost_s for diagnosed, lost_s in told if (diagnosed.kind, diagnosed.hint) == (kind, hint))
        yield lost, f"{kind.replace('_', ' ')} ({counted(count, 'incident')}): {hint}."


def _lost(account: Account, use: Use) -> float:
    return sum(loss.by_use.get(use, 0.0) for loss in account.losses)
