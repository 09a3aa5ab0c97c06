"""What would have helped against one incident: a flag where there is one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ftlaunch.launcher.evidence import patterns
from ftlaunch.launcher.history.goodput import Loss, Use
from ftlaunch.launcher.history.model import Generation
from ftlaunch.launcher.journal.incident import FailureCause

_SLOW_S = 1.0
_SLOW_SETUP_S = 2.0
_LONG_SILENCE_S = 60.0
_LIMIT = re.compile(r"the limit is ([\d.]+) s")

_STALLS = (
    (
        "is stopped",
        "somebody stopped it (SIGSTOP, a debugger, a batch system): --ignore-stopped leaves such ranks alone",
    ),
    ("uninterruptible sleep", "look at the storage or driver it waits for; --dstate-timeout sets how long it may"),
    ("lost its main thread", "a thread goes on after the main one has ended: join or daemonise it in the script"),
    ("after rank", "the ranks do not end together: --exit-barrier-timeout sets how long the others may do nothing"),
    (
        "no first step",
        "if the set-up may take that long: a longer --init-timeout, or beat() and section() while it goes on",
    ),
)
_ENDS = (
    ("--max-restarts", "leave out --max-restarts: then restarts go on as long as there is progress"),
    ("--restart-budget", "a larger --restart-budget, if such a rate of failures is to be borne"),
    ("--fatal-exit-codes", "the code is in --fatal-exit-codes: take it out if a restart may help"),
)


def hints(loss: Loss, following: Generation | None, stderr: str = "") -> list[str]:
    """Sentences without a full stop, the cause's own first; none where nothing is known to help.

    ``stderr``: the last lines that the first failed rank wrote.
    """
    cause, verdict = loss.incident.cause, loss.incident.diagnosis
    # What was found out at the time had more to go by than the records.
    known = [verdict.hint] if verdict is not None and verdict.hint else list(_of_cause(cause, stderr))
    found = [*known, *_of_decision(loss), *_of_recovery(loss, following)]
    return list(dict.fromkeys(found))


def _of_cause(cause: FailureCause, stderr: str) -> Iterator[str]:
    if cause.kind == "stall":
        yield from _of_stall(cause)
        return
    if cause.kind == "request":
        return
    said = f"{cause.exception}: {cause.message}" if cause.exception else stderr
    pattern = patterns.match("\n".join((said, *cause.evidence)))
    if pattern is not None and pattern.hint:
        yield pattern.hint
    elif cause.exit_code == -9 and not any("memory" in block for block in cause.evidence):
        yield (
            "not ftlaunch's SIGKILL: look for the kernel's out-of-memory killer (dmesg), the container's memory limit, "
            "or whoever sends signals"
        )
    elif cause.kind == "exception" and cause.place:
        yield f"the script's own fault, at {cause.place}"


def _of_stall(cause: FailureCause) -> Iterator[str]:
    for text, hint in _STALLS:
        if text in cause.reason:
            yield hint
            return
    name = _section(cause.reason)
    yield (
        f"if it was none: --section-timeout {name}=SECONDS or a higher --hang-floor, and beat() or section() in the "
        "script around what takes long"
    )
    limit = _LIMIT.search(cause.reason)
    if limit and float(limit[1]) >= _LONG_SILENCE_S:
        yield f"to see it earlier than after {limit[1]} s: a lower --hang-timeout, or --section-timeout {name}=SECONDS"


def _section(reason: str) -> str:
    found = re.search(r"in section (\S+)", reason)
    return found[1] if found else "step"


def _of_decision(loss: Loss) -> Iterator[str]:
    if loss.incident.decision == "restart":
        return
    for text, hint in _ENDS:
        if text in loss.incident.decision_reason:
            yield hint


def _of_recovery(loss: Loss, following: Generation | None) -> Iterator[str]:
    phases = loss.phases_s
    if phases.get(Use.STOPPED, 0.0) >= _SLOW_S:
        yield "ranks used their grace to end: a lower --kill-grace (or --checkpoint-grace) stops them sooner"
    if phases.get(Use.RECLAIMED, 0.0) >= _SLOW_S:
        yield "GPU memory came back late: look for processes of others on the GPUs"
    if following is not None and phases.get(Use.RESUMED, 0.0) >= _SLOW_SETUP_S and following.warm < following.slots:
        cold = following.slots - following.warm
        yield f"{cold} of {following.slots} ranks started cold, no standby was ready: see --standby, ftctl events"
    if loss.repeated_steps and loss.by_use.get(Use.REPEATED, 0.0) >= loss.lost_s / 2:
        resumed = following is not None and following.resume_from
        rest = "save more often" if resumed else "save checkpoints and resume from them (--checkpoint-dir)"
        yield f"{loss.repeated_steps} steps were run again: {rest}"
