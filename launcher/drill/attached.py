"""A drill of a job that runs already: arms one fault at its agent and looks how it is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.drill.asserts import Budgets, Finding, Injection, Life, injection_of, judge
from ftlaunch.launcher.drill.machinery import wait_for
from ftlaunch.launcher.drill.plan import Fault, Kind, Plan, to_json
from ftlaunch.launcher.drill.result import Report
from ftlaunch.launcher.drill.tail import Tail
from ftlaunch.launcher.drill.told import describe
from ftlaunch.launcher.host.growth import Waiter
from ftlaunch.launcher.journal.records import EVENTS_FILE
from ftlaunch.launcher.journal.rundir import is_running, read_run_file
from ftlaunch.launcher.processes import guardian

_GIVE_UP_S = 10.0
_UNDETECTED_S = 60.0
_WAKE_S = 1.0
_GONE_S = 10.0
_ENDING = (Kind.AGENT_KILL, Kind.NODE_LOSS)

Ask = Callable[..., Any]


class Attached:
    """Follows one run. ``ask``: asks its agent, as ``ask("drill", fault=…)``."""

    def __init__(self, run: Path, ask: Ask, fault: Fault, budgets: Budgets, tell: Callable[[str], None]) -> None:
        self._run = run
        self._ask = ask
        self._fault = fault
        self._budgets = budgets
        self._tell = tell
        self._tail = Tail(run, _size(run / EVENTS_FILE))
        self._armed = ""
        self._began_at = clock.monotonic()

    def arm(self) -> str:
        """Arm it; returns its name. What the agent answers when it refuses is raised by ``ask``."""
        self._armed = str(self._ask("drill", fault=to_json(self._fault))["fault"])
        self._fault = replace(self._fault, id=self._armed)
        return self._armed

    def withdraw(self) -> None:
        """Take back what has not happened yet."""
        self._ask("drill-end", fault=self._armed)

    def follow(self, marker: str) -> Report:
        """Wait until it has happened as often as wanted, and look how it was taken. ``marker``: the run's own."""
        waiter = Waiter()
        waiter.watch(self._run)
        try:
            if self._fault.kind in _ENDING:
                return self._follow_end(waiter, marker)
            findings: list[Finding] = []
            while len(findings) < self._fault.times:
                finding = self._next(waiter, len(findings))
                findings.append(finding)
                self._tell(describe(finding))
                if finding.injection is None or not finding.settled:
                    break
            return self._report(tuple(findings))
        finally:
            waiter.close()

    def _next(self, waiter: Waiter, number: int) -> Finding:
        give_up_at = None
        while True:
            over = not is_running(self._run)
            self._tail.read()
            finding = self._judge(number, over)
            if finding.injection is not None and give_up_at is None:
                allowed_s = (finding.detect_budget_s or _UNDETECTED_S) + (finding.recover_budget_s or 0.0)
                give_up_at = clock.monotonic() + allowed_s + _GIVE_UP_S
            if finding.settled or over or (give_up_at is not None and clock.monotonic() > give_up_at):
                return finding
            waiter.wait(_WAKE_S)

    def _judge(self, number: int, over: bool) -> Finding:
        life = Life(0, 0.0, self._tail.events, not over)
        struck = self._injections()
        injection = struck[number] if number < len(struck) else None
        return judge(self._fault, injection, [life], self._budgets, clock.monotonic())

    def _injections(self) -> list[Injection]:
        found = (injection_of(event) for event in self._tail.events if event["event"] == "fault_injected")
        return [injection for injection in found if injection is not None and injection.fault == self._armed]

    def _follow_end(self, waiter: Waiter, marker: str) -> Report:
        """With the agent everything of the run on this node has to go."""
        agent = _open_agent(self._run)
        try:
            while is_running(self._run):
                waiter.wait(_WAKE_S, agent)
        finally:
            for pidfd in agent:
                os.close(pidfd)
        self._tail.read()
        struck = self._injections()
        if not struck:
            return self._report((self._judge(0, over=True),))

        def left() -> list[str]:
            pids = [name for name in os.listdir("/proc") if name.isdecimal()]
            return [f"pid {pid}" for pid in pids if marker and guardian.carries(int(pid), marker)]

        gone = wait_for(lambda: not left(), _GONE_S)
        after_s = clock.monotonic() - struck[0].at
        if gone:
            self._tell(f"{self._fault.kind.value}: nothing of the run is left on this node after {after_s:.2f} s")
        finding = Finding(self._fault, struck[0], generation=struck[0].generation, settled=True)
        return self._report((finding,), tuple(left()))

    def _report(self, findings: tuple[Finding, ...], left: tuple[str, ...] = ()) -> Report:
        return Report(
            plan=Plan((self._fault,)),
            findings=findings,
            left_over=left,
            wall_s=clock.monotonic() - self._began_at,
            runs=(str(self._run),) if self._fault.kind in _ENDING else (),
        )


def _open_agent(run: Path) -> list[int]:
    """A descriptor that is readable once the run's agent has ended; none when it has."""
    try:
        return [os.pidfd_open(int((read_run_file(run) or {}).get("pid", -1)))]
    except (OSError, ValueError):
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
