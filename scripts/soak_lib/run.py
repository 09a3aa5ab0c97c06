"""One run of chaos: the loop that waits, strikes and looks, and the end with the final model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.drill.machinery import Agent, wait_for
from ftlaunch.launcher.drill.steps import account, parse_ledger
from ftlaunch.launcher.host import kernel
from ftlaunch.launcher.host.growth import Waiter
from soak_lib import watch
from soak_lib.plan import NODES, RANKS, Strike
from soak_lib.stage import EVERY, SCRIPT, Stage
from soak_lib.watch import Check, Gauges, Generations
from support.etcd import EtcdCluster, etcd

_START_S, _STUCK_S, _END_S, _LEFT_S = 90.0, 240.0, 240.0, 5.0
_TRIGGER_S = 8.0
"""So long a fault waits for its event; then it happens anyway."""
_LOOK_S, _GAUGE_S = 0.1, 1.0
_STEPPING_S, _LONG_S = 1.0, 40.0
"""The plan's clock stands still while no rank has made a step, and no fault has come, for the first time; it goes on
after the second. So faults come to a job that trains, during a recovery where the plan says so, and in a long one."""
_AFTER_STEPS = 50


class Soak:
    """Runs once. ``tell`` gets a line for everything that happens."""

    def __init__(self, plan: Sequence[Strike], seconds: float, out: Path, tell: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._out = out
        self._tell = tell
        self._plan = plan
        self._to_come: list[Strike] = []
        self._armed: list[tuple[Strike, float]] = []
        self._timed: list[tuple[float, Strike]] = []
        self._waiter = Waiter()
        self._watched = 0
        self._generations = Generations()
        self._gauges = Gauges()
        self._gauged_at = 0.0
        self._began_at = clock.monotonic()
        self._progress = (0, self._began_at)
        self._plan_s = 0.0
        self._passed_at = self._began_at
        self._struck_at = self._began_at
        self._cleared: set[str] = set()
        self.done: list[tuple[float, Strike, str]] = []
        self.alive = Check("one generation at a time")
        self.orphans = Check("nothing outlives its agent")
        self.end = Check("the job goes on, and ends with 0")
        self.checks: list[Check] = []

    def run(self) -> list[Check]:
        """All checks. Nothing that it started is left, however it ends."""
        kernel.become_subreaper()
        try:
            with etcd(members=3) as cluster, self._stage(cluster) as stage:
                stage.start()
                if self._pass(stage, lambda: self._is_training(stage), _START_S):
                    self._tell("training has begun")
                    self._began_at, self._plan_s, self._to_come = clock.monotonic(), 0.0, list(self._plan)
                    self._pass(stage, lambda: False, self._seconds)
                else:
                    self._violated(self.end, f"no step within {_START_S:g} s")
                self._finish(stage)
        finally:
            self._waiter.close()
        return self.checks

    @contextlib.contextmanager
    def _stage(self, cluster: EtcdCluster) -> Iterator[Stage]:
        stage = Stage(self._out, cluster)
        try:
            yield stage
        finally:
            stage.close()

    # -- the loop -----------------------------------------------------------------------------------------------

    def _pass(self, stage: Stage, until: Callable[[], bool], seconds: float) -> bool:
        """Take in what happens, strike and look, for so long or until ``until``; false when the time is over."""
        end_at = clock.monotonic() + seconds
        while True:
            for agent in stage.agents[self._watched :]:
                self._waiter.watch(agent.folder)
                self._watched += 1
            for agent in stage.agents:
                new = agent.tail.read()
                for event in agent.tail.events[len(agent.tail.events) - new :]:
                    self._hear(event)
            now = clock.monotonic()
            self._advance(now)
            stage.tend(now)
            self._strike_what_is_due(stage, now)
            self._look(stage, now)
            if until():
                return True
            if now >= end_at or self._is_stuck(stage, now):
                return False
            due = [at for at, _ in self._timed] + [now + each.at_s - self._plan_s for each in self._to_come[:1]]
            pause_s = min(_LOOK_S, *(at - now for at in (end_at, stage.next_due(), *due)))
            self._waiter.wait(max(0.0, pause_s), [agent.pidfd for agent in stage.running])

    def _advance(self, now: float) -> None:
        idle_s = now - max(self._progress[1], self._struck_at)
        if idle_s < _STEPPING_S or idle_s > _LONG_S:
            self._plan_s += now - self._passed_at
        self._passed_at = now

    def _is_training(self, stage: Stage) -> bool:
        return any(event["event"] == "training_resumed" for agent in stage.agents for event in agent.tail.events)

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "workers_started":
            self._generations.note(event)
        for entry in [entry for entry in self._armed if entry[0].during == event["event"]]:
            self._armed.remove(entry)
            self._timed.append((clock.monotonic() + entry[0].delay_s, entry[0]))

    def _strike_what_is_due(self, stage: Stage, now: float) -> None:
        while self._to_come and self._to_come[0].at_s <= self._plan_s:
            strike = self._to_come.pop(0)
            if strike.during:
                self._armed.append((strike, now))
            else:
                self._timed.append((now, strike))
        for entry in [entry for entry in self._armed if now - entry[1] > _TRIGGER_S]:
            self._armed.remove(entry)
            self._timed.append((now, entry[0]))
        for timed in [timed for timed in self._timed if timed[0] <= now]:
            self._timed.remove(timed)
            what, self._struck_at = stage.strike(timed[1]), now
            at_s = clock.monotonic() - self._began_at
            self.done.append((at_s, timed[1], what))
            self._tell(f"{at_s:6.1f} s: {timed[1]}{f' ({what})' if what else ''}")

    # -- looking ------------------------------------------------------------------------------------------------

    def _look(self, stage: Stage, now: float) -> None:
        problem = self._generations.look()
        if problem:
            self._violated(self.alive, problem)
        if now - self._gauged_at < _GAUGE_S:
            return
        self._gauged_at = now
        for agent in stage.running:
            self._gauges.add_process(agent.folder.name, agent.pid, now)
        if stage.whole:
            with contextlib.suppress(OSError):
                keys = stage.cluster.members[0].keys(f"/ftlaunch/{stage.job}/")
                self._gauges.add("the job", "keys in etcd", now, len(keys))
        self._look_for_orphans(stage)

    def _look_for_orphans(self, stage: Stage) -> None:
        for agent in stage.agents:
            if agent.alive or agent.mark in self._cleared:
                continue
            self._cleared.add(agent.mark)
            if not wait_for(lambda agent=agent: not stage.left_over([agent]), _LEFT_S):  # type: ignore[misc]
                told = ", ".join(f"pid {entry.pid} ({entry.name})" for entry in stage.left_over([agent]))
                self._violated(self.orphans, f"{agent.folder.name}, {_LEFT_S:g} s after its end: {told}")

    def _is_stuck(self, stage: Stage, now: float) -> bool:
        size = sum(path.stat().st_size for path in self._out.glob("steps-*.jsonl"))
        if size != self._progress[0]:
            self._progress = (size, now)
        for agent in (stage.current(node) for node in range(NODES)):
            if not agent.alive and agent.mark not in stage.struck_down and agent.process.returncode != 0:
                self._violated(self.end, f"{agent.folder.name} ended with code {agent.process.returncode} by itself")
                return True
        if not stage.running and stage.whole:
            return True
        if now - self._progress[1] < _STUCK_S:
            return False
        self._violated(self.end, f"no rank made a step for {_STUCK_S:g} s")
        return True

    def _violated(self, check: Check, what: str) -> None:
        told = f"{clock.monotonic() - self._began_at:.1f} s: {what}"
        if what not in {violation.partition(": ")[2] for violation in check.violations}:
            check.violations.append(told)
            self._tell(f"VIOLATED: {check.name}: {told}")

    # -- end ----------------------------------------------------------------------------------------------------

    def _finish(self, stage: Stage) -> None:
        """Let the job come to its end, and look at everything."""
        self._to_come.clear()
        self._armed.clear()
        self._timed.clear()
        stage.heal()
        steps = -(-(self._reached() + _AFTER_STEPS) // EVERY) * EVERY
        part = self._out / "last.part"
        part.write_text(str(steps))
        part.replace(self._out / "last")
        self._tell(f"the chaos is over; the job is to end at step {steps}")
        if not self._pass(stage, lambda: not stage.running, _END_S) and stage.running:
            self._violated(self.end, f"still running {_END_S:g} s after the last fault")
            stage.end_agents()
        self._look_for_orphans(stage)
        self._check_end([stage.current(node) for node in range(NODES)])
        self.alive.seen = f"{self._generations.looks} looks, {self._generations.newest + 1} generations"
        self.orphans.seen = f"{len(stage.agents)} lives of agents"
        self.checks += [self.alive, watch.dead_steps(self._out), self._steps(), self.orphans]
        self.checks += [self._gauges.check(what) for what in watch.ALLOWED]
        self.checks += [watch.outbursts(agent.folder / "output.log" for agent in stage.agents), self.end]
        if self.end.ok:
            self.checks.append(self._model(steps))

    def _reached(self) -> int:
        found = (_last_step(path) for path in self._out.glob("steps-*.jsonl"))
        return max(found, default=0)

    def _check_end(self, agents: Sequence[Agent]) -> None:
        codes = [agent.process.returncode for agent in agents]
        self.end.seen = f"codes {codes}"
        for agent, code in zip(agents, codes, strict=True):
            if code != 0:
                self._violated(self.end, f"{agent.folder.name} ended with code {code}: {agent.last_line()}")

    def _steps(self) -> Check:
        folder = self._out / "board" / "steps"
        ledger = {int(path.name): parse_ledger(path.read_text()) for path in folder.iterdir()}
        told = account(ledger, self.end.ok)
        return Check("no step is lost", f"{told.made} steps, {told.repeated} repeated", list(told.problems))

    def _model(self, steps: int) -> Check:
        """Bitwise that of an undisturbed run, which is all on one node."""
        check = Check("the final model is that of an undisturbed run")
        folder = self._out / "undisturbed"
        folder.mkdir()
        ranks = str(NODES * RANKS)
        argv = [sys.executable, "-m", "ftlaunch.launcher", "--run-dir", str(folder / "run"), "--nproc-per-node", ranks]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(self._out / "run")}
        limit_s = 120 + steps * 0.2
        with open(folder / "output.log", "wb") as log:
            done = subprocess.run(
                [*argv, str(SCRIPT), str(folder), str(steps), str(EVERY)],
                env=environment,
                stdout=log,
                stderr=log,
                timeout=limit_s,
            )
        digests = [_read(place / "digest") for place in (self._out, folder)]
        check.seen = f"{digests[0][:16]} after {steps} steps"
        if done.returncode != 0 or digests[0] != digests[1]:
            check.violations.append(f"{digests[0]}, undisturbed {digests[1]} (code {done.returncode})")
        return check


def _last_step(path: Path) -> int:
    steps = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            steps.append(int(json.loads(line)["step"]))
    return max(steps, default=0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return "none"
