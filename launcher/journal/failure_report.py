"""The failure report: the last thing that a failed job prints. Pure; values in, text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ftlaunch.heartbeat.watching.verdicts import rank_ranges
from ftlaunch.launcher.exit_codes import ExitCode, from_wait_status, signal_name
from ftlaunch.launcher.journal.errorfile import ErrorFile
from ftlaunch.launcher.journal.incident import Diagnosed, FailureCause, RankEnd

_WIDTH = 78
_TRACEBACK_HEAD = 20
_TRACEBACK_TAIL = 100
_LINE_CHARS = 500
_BLOCKS = 8
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class FailureReport:
    """Everything the report tells."""

    command: str
    job_id: str
    generation: int
    restarts: int
    cause: FailureCause
    exit_code: int
    exit_reason: str
    """Why the job ends instead of starting again."""
    error_file: ErrorFile | None = None
    stderr_tail: Sequence[bytes] = ()
    ends: Sequence[RankEnd] = ()
    """All ranks whose end is known, the first failed one included or not."""
    logs: str = ""
    records: str = ""
    hints: Sequence[str] = ()
    diagnosis: Diagnosed | None = None
    as_torchrun: bool = False
    """``--torchrun-exit-codes``"""


def render(report: FailureReport) -> str:
    """The text, without a final line end. A few dozen lines, whatever the number of ranks."""
    heavy, light = "=" * _WIDTH, "-" * _WIDTH
    restarts = f"{report.restarts} restart" + ("" if report.restarts == 1 else "s")
    lines = [heavy, f"{clean(report.command)} FAILED", light]
    lines += [f"job {clean(report.job_id)}, generation {report.generation}, {restarts}"] if report.job_id else []
    lines += ["", "Root Cause (first observed failure):", *_cause_block(report)]
    lines += _others(report)
    lines += _stopped(report)
    lines += ["", light, *_ending(report), heavy]
    return "\n".join(lines)


def explain_exit_code(code: int, cause: FailureCause, as_torchrun: bool = False) -> str:
    """What the launcher's own exit code means, in a few words; ``as_torchrun``: it is 1 whatever failed."""
    if cause.exit_code is not None and cause.rank is not None and code == from_wait_status(cause.exit_code):
        if cause.exit_code < 0:
            return f"128 + {-cause.exit_code}, because rank {cause.rank} was ended by {signal_name(-cause.exit_code)}"
        return f"the code that rank {cause.rank} ended with"
    if as_torchrun:
        return "as torchrun (--torchrun-exit-codes)" + _own_end(cause.exit_code)
    return _OWN_CODES.get(code, "the failed rank's code is not known" if code == 1 else "the job's code")


def _own_end(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    how = f"was killed by {signal_name(-exit_code)}" if exit_code < 0 else f"ended with {exit_code}"
    return f"; the failed rank {how}"


_OWN_CODES = {
    int(ExitCode.SUCCESS): "success",
    int(ExitCode.USAGE): "wrong usage or configuration",
    int(ExitCode.RENDEZVOUS): "the rendezvous could not be reached or completed",
    int(ExitCode.UNHEALTHY): "this node is unhealthy: run the job elsewhere",
    int(ExitCode.NO_PROGRESS): "restarting does not help: do not requeue",
    int(ExitCode.INTERRUPTED): "stopped by SIGINT",
    int(ExitCode.TERMINATED): "stopped by SIGTERM",
}


def describe_code(exit_code: int | None) -> str:
    """``exit code 3``, ``killed by SIGKILL (signal 9)``."""
    if exit_code is None:
        return "end not known"
    if exit_code < 0:
        return f"killed by {signal_name(-exit_code)} (signal {-exit_code})"
    return f"exit code {exit_code}"


def clean(text: str) -> str:
    """Without what moves a terminal's cursor or changes its colours."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", _ESCAPES.sub("", text))


def _cause_block(report: FailureReport) -> list[str]:
    cause = report.cause
    rows = []
    if cause.rank is not None:
        local = "" if cause.local_rank is None else f" (local_rank: {cause.local_rank})"
        rows.append(("rank", f"{cause.rank}{local}"))
    rows.append(("host", clean(cause.host)))
    rows.append(("pid", "" if cause.pid is None else str(cause.pid)))
    rows.append(("exitcode", describe_code(cause.exit_code) if cause.exit_code is not None else ""))
    rows.append(("kind", cause.kind))
    rows.append(("reason", clean(cause.reason)))
    rows.append(("diagnosis", "" if report.diagnosis is None else clean(str(report.diagnosis))))
    rows.append(("step", "" if cause.step is None else str(cause.step)))
    rows.append(("place", clean(cause.place)))
    rows.append(("error_file", report.error_file.path if report.error_file else ""))
    lines = [f"  {name:<10}: {value}" for name, value in rows if value]
    lines += ["  evidence  :"] if cause.evidence else []
    for block in cause.evidence:
        lines += _indented(_shortened(block.splitlines()))
    return lines + _words(report)


def _words(report: FailureReport) -> list[str]:
    """The best account of the failure: last words, then torch's error file, then the end of stderr."""
    cause, error = report.cause, report.error_file
    traceback = cause.traceback or (error.traceback if error else "")
    if traceback.strip():
        return ["  traceback :", *_indented(_shortened(traceback.strip("\n").splitlines()))]
    lines = []
    said = f"{cause.exception}: {cause.message}" if cause.exception else error.message if error else ""
    if said.strip():
        lines += ["  error     :", *_indented(_shortened(said.splitlines()))]
    if report.stderr_tail:
        texts = [line.decode("utf-8", "replace") for line in report.stderr_tail]
        lines += [f"  last {len(texts)} lines of its stderr:", *_indented(texts)]
    elif not said.strip() and cause.rank is not None:
        lines.append("  it wrote nothing to stderr")
    return lines


def _others(report: FailureReport) -> list[str]:
    first = report.cause
    own = [
        end
        for end in report.ends
        if not end.stopped_by_launcher and end.exit_code not in (0, None) and end.rank != first.rank
    ]
    if not own:
        return []
    own.sort(key=lambda end: (end.at is None, end.at or 0.0, end.rank))
    lines = ["", "Other ranks that failed by themselves:"]
    for end in own[:_BLOCKS]:
        later = f", {_milliseconds(end.at - first.at)}" if end.at is not None and first.at is not None else ""
        where = f" on {clean(end.host)}" if end.host else ""
        pid = f", pid {end.pid}" if end.pid is not None else ""
        lines.append(
            f"  rank {end.rank} (local_rank: {end.local_rank}){where}{pid}: {describe_code(end.exit_code)}{later}"
        )
    if len(own) > _BLOCKS:
        lines.append(f"  and {len(own) - _BLOCKS} more: ranks {_capped(end.rank for end in own[_BLOCKS:])}")
    return lines


def _milliseconds(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.0f} s later"
    # A rank may die before the one whose last words came first.
    return f"{seconds * 1000:.1f} ms later" if seconds >= 0 else f"{-seconds * 1000:.1f} ms earlier"


def _stopped(report: FailureReport) -> list[str]:
    groups: dict[str, list[int]] = {}
    for end in report.ends:
        if end.stopped_by_launcher and end.rank != report.cause.rank:
            groups.setdefault(end.how, []).append(end.rank)
    if not groups:
        return []
    lines = ["", "Stopped by the launcher (not failures):"]
    for how, ranks in sorted(groups.items(), key=lambda item: min(item[1])):
        word = "rank" if len(ranks) == 1 else "ranks"
        lines.append(f"  {word} {_capped(ranks)}" + (f" ({clean(how)})" if how else ""))
    return lines


def _capped(ranks: Iterable[int]) -> str:
    text = rank_ranges(ranks)
    return text if len(text) <= _LINE_CHARS else text[:_LINE_CHARS].rpartition(",")[0] + ", …"


def _ending(report: FailureReport) -> list[str]:
    code = explain_exit_code(report.exit_code, report.cause, report.as_torchrun)
    rows = [
        ("why it ends", clean(report.exit_reason)),
        *(("hint", clean(hint)) for hint in report.hints),
        ("logs", report.logs),
        ("records", report.records),
        ("exit code", f"{report.exit_code}: {code}"),
    ]
    return [f"{name:<12}: {value}" for name, value in rows if value]


def _shortened(lines: Sequence[str]) -> list[str]:
    if len(lines) <= _TRACEBACK_HEAD + _TRACEBACK_TAIL:
        return list(lines)
    left_out = len(lines) - _TRACEBACK_HEAD - _TRACEBACK_TAIL
    return [*lines[:_TRACEBACK_HEAD], f"… {left_out} lines left out …", *lines[-_TRACEBACK_TAIL:]]


def _indented(lines: Iterable[str]) -> list[str]:
    return ["    " + clean(line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + " …") for line in lines]
