"""What a drill is given, and what it has shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.launcher.drill.asserts import Budgets, Finding
from ftlaunch.launcher.drill.plan import Plan
from ftlaunch.launcher.drill.steps import StepAccount

OUT = "{out}"
"""In ftlaunch's options and the script's arguments this stands for the directory of the drill."""


@dataclass(frozen=True)
class Setup:
    """What is to be drilled. ``arguments``: ftlaunch's options, the script and its arguments."""

    arguments: tuple[str, ...]
    out: Path
    nproc: int
    nodes: int = 1
    budgets: Budgets = field(default_factory=Budgets)
    timeout_s: float = 600.0
    stop_when_done: bool = False
    """End the job once the last fault is settled, instead of letting it go on to its end."""
    warm: bool = False
    """Let each fault come only when all standbys are ready."""


@dataclass(frozen=True)
class Report:
    """What the drill has shown."""

    plan: Plan
    findings: tuple[Finding, ...] = ()
    steps: StepAccount = field(default_factory=StepAccount)
    exit_codes: tuple[int, ...] = ()
    left_over: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Beside those of single faults."""
    wall_s: float = 0.0
    runs: tuple[str, ...] = ()
    """Run directories, one for each life of each agent."""

    @property
    def ok(self) -> bool:
        """Everything was as it should be."""
        return all(finding.ok for finding in self.findings) and not (
            self.problems or self.left_over or self.steps.problems
        )
