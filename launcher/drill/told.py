"""What a drill has shown, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftlaunch.launcher.drill.asserts import Finding, recovery_time
from ftlaunch.launcher.drill.plan import Kind, to_json
from ftlaunch.launcher.drill.result import Report

HEADER = ("FAULT", "WHERE", "STEP", "DETECTED AFTER", "ALLOWED", "RECOVERY TOOK", "ALLOWED", "RESULT")
_PASSED, _FAILED = "ok", "FAILED"


def rows(report: Report) -> list[tuple[str, ...]]:
    """One row of cells per fault."""
    return [_row(finding) for finding in report.findings]


def _row(finding: Finding) -> tuple[str, ...]:
    fault, injection = finding.fault, finding.injection
    step = injection.step if injection is not None else None
    quiet = finding.ok and finding.detected_s is None and fault.kind in (Kind.ETCD_STOP, Kind.NET_CUT)
    return (
        fault.id or fault.kind.value,
        fault.target,
        "-" if step is None else str(step),
        "not disturbed" if quiet else seconds(finding.detected_s),
        "-" if quiet else seconds(finding.detect_budget_s),
        "-" if quiet else seconds(recovery_time(finding)),
        "-" if quiet else seconds(finding.recover_budget_s),
        _PASSED if finding.ok else _FAILED,
    )


def seconds(value: float | None) -> str:
    """``4 ms``, ``0.31 s``, ``12.5 s``"""
    if value is None:
        return "-"
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def notes(report: Report) -> list[str]:
    """Everything beside the table: what is wrong, what was counted, and the verdict as the last line."""
    lines = [f"{finding.fault.id}: {problem}" for finding in report.findings for problem in finding.problems]
    lines += report.problems
    lines += [f"left over: {process}" for process in report.left_over]
    lines += report.steps.problems
    return [*lines, verdict(report)]


def verdict(report: Report) -> str:
    """One line."""
    faults = len(report.findings)
    passed = sum(finding.ok for finding in report.findings)
    parts = [f"{passed} of {faults} fault{'s' * (faults != 1)} taken as they should be"]
    if report.steps.known:
        parts.append(f"{report.steps.made} steps, none lost, {report.steps.repeated} repeated since a checkpoint")
        if report.steps.problems:
            parts[-1] = "steps are wrong"
    if report.runs:
        parts.append("nothing left over" if not report.left_over else f"{len(report.left_over)} left over")
    seed = f" (seed {report.plan.seed})" if report.plan.seed is not None else ""
    return f"{'passed' if report.ok else 'FAILED'}: {', '.join(parts)}{seed}"


def describe(finding: Finding) -> str:
    """One line about one fault, while the drill goes on."""
    fault, injection = finding.fault, finding.injection
    at = f" at step {injection.step}" if injection is not None and injection.step is not None else ""
    head = f"{fault.kind.value}: {fault.target}{at}"
    if finding.problems:
        return f"{head}: {'; '.join(finding.problems)}"
    parts: Sequence[str] = [
        f"detected after {seconds(finding.detected_s)}" if finding.detected_s is not None else "",
        f"training again after {seconds(finding.recovered_s)}" if finding.recovered_s is not None else "",
    ]
    return f"{head}: {', '.join(filter(None, parts)) or 'the job was not disturbed'}"


def as_json(report: Report) -> dict[str, Any]:
    """For programs. Times in seconds after the fault."""
    return {
        "ok": report.ok,
        "seed": report.plan.seed,
        "wall_s": round(report.wall_s, 3),
        "faults": [_finding(finding) for finding in report.findings],
        "steps": {
            "known": report.steps.known,
            "last": report.steps.last,
            "made": report.steps.made,
            "repeated": report.steps.repeated,
            "problems": list(report.steps.problems),
        },
        "exit_codes": list(report.exit_codes),
        "left_over": list(report.left_over),
        "problems": list(report.problems),
        "runs": list(report.runs),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    injection = finding.injection
    return {
        **to_json(finding.fault),
        "ok": finding.ok,
        "problems": list(finding.problems),
        "struck_at_step": None if injection is None else injection.step,
        "generation": finding.generation,
        "detected_s": _rounded(finding.detected_s),
        "detect_budget_s": _rounded(finding.detect_budget_s),
        "recovered_s": _rounded(finding.recovered_s),
        "recovery_s": _rounded(recovery_time(finding)),
        "recover_budget_s": _rounded(finding.recover_budget_s),
        "phases_s": dict(finding.phases_s),
        "blamed": finding.blamed,
        "reason": finding.reason,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
