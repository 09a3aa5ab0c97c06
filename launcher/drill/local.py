"""A whole drill on this machine: starts the job, carries out the plan, looks how each fault was taken, clears up."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ftlaunch.launcher import clock
from ftlaunch.launcher.drill import injector, machinery
from ftlaunch.launcher.drill.asserts import Finding, Injection, Life, injection_of, injections, is_warm, judge
from ftlaunch.launcher.drill.board import VARIABLE, Board, OwnGroup, open_board
from ftlaunch.launcher.drill.machinery import MARK, Agent, Etcd, Link
from ftlaunch.launcher.drill.plan import RANK_KINDS, Fault, Kind, Plan, PlanError
from ftlaunch.launcher.drill.result import OUT, Report, Setup
from ftlaunch.launcher.drill.steps import account
from ftlaunch.launcher.drill.told import describe
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.host import kernel
from ftlaunch.launcher.host.growth import Waiter

_GIVE_UP_S = 10.0
_UNDETECTED_S = 60.0
_END_S = 5.0
_LEFT_S = 3.0
_LONG_S = 3600.0


class LocalDrill:
    """Runs once. Not for a process that has other children: what it inherits as a subreaper counts as left over."""

    def __init__(self, plan: Plan, setup: Setup, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._setup = setup
        self._tell = tell
        self._began_at = clock.monotonic()
        self._agents: list[Agent] = []
        self._helpers: list[machinery.Child] = []
        self._links: dict[int, Link] = {}
        self._etcd: Etcd | None = None
        self._board: Board | None = None
        self._waiter = Waiter()
        self._job = secrets.token_hex(6)
        self._done: dict[str, Injection] = {}
        self._groups: list[Path] = []
        self._back_at: dict[int, float] = {}
        self._heal: list[tuple[float, machinery.Child]] = []
        self._problems: list[str] = []

    def run(self) -> Report:
        """Carry out the plan. Raises :class:`PlanError` for what cannot be drilled here, before anything is started.

        However it ends, also by an exception that a signal handler raises, nothing that it started is left.
        """
        if any(fault.kind is Kind.OOM for fault in self._plan.faults):
            self._require_group()
        kernel.become_subreaper()
        findings: list[Finding] = []
        try:
            self._start()
            for number, fault in enumerate(self._plan.faults, start=1):
                findings.append(self._go_through(fault))
                self._tell(f"{number}/{len(self._plan.faults)} {describe(findings[-1])}")
                if not findings[-1].settled and findings[-1].injection is not None:
                    break
            self._finish(stop=self._setup.stop_when_done or len(findings) < len(self._plan.faults))
            left = self._look_for_leftovers()
            return self._report(left)
        finally:
            self._clear_up()

    # -- start --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._board = open_board(str(self._setup.out / "board"))
        self._board.keep_ledger()
        if self._setup.nodes > 1:
            self._etcd = Etcd(machinery.find_etcd(), self._setup.out / "etcd")
            self._helpers.append(self._etcd.child)
            self._etcd.wait_until_ready()
        first = self._plan.faults[0]
        if self._goes_by_step(first) and not self._setup.warm:
            # Before the ranks are there, so that no step is too early for it.
            self._put(first)
        for node in range(self._setup.nodes):
            self._start_agent(node)

    def _start_agent(self, node: int) -> None:
        life = sum(agent.node == node for agent in self._agents)
        folder = self._setup.out / (f"node-{node}" if life == 0 else f"node-{node}-life-{life + 1}")
        environment = {**os.environ, VARIABLE: str(self._setup.out / "board"), MARK: f"{self._job}.{node}.{life}"}
        argv = [sys.executable, "-m", "ftlaunch.launcher", "--run-dir", str(folder)]
        if self._setup.nodes > 1:
            argv += ["--nnodes", str(self._setup.nodes), "--rdzv-backend", "etcd", "--rdzv-id", f"drill-{self._job}"]
            argv += ["--rdzv-endpoint", f"127.0.0.1:{self._etcd_port(node)}", "--local-addr", "127.0.0.1"]
            argv += ["--allow-multiple-agents-per-node"]
        argv += [argument.replace(OUT, str(self._setup.out)) for argument in self._setup.arguments]
        agent = Agent(argv, environment, folder, node)
        self._agents.append(agent)
        self._waiter.watch(folder)

    def _etcd_port(self, node: int) -> int:
        if self._etcd is None:
            raise PlanError("there is no etcd")
        if not any(fault.kind is Kind.NET_CUT and (fault.node or 0) == node for fault in self._plan.faults):
            return self._etcd.port
        if node not in self._links:
            self._links[node] = Link(self._etcd.port)
            self._helpers.append(self._links[node].child)
        return self._links[node].port

    # -- one fault ----------------------------------------------------------------------------------------------

    def _go_through(self, fault: Fault) -> Finding:
        if self._setup.warm:
            self._wait(self._is_warm, self._deadline)
        if self._goes_by_step(fault):
            if fault is not self._plan.faults[0] or self._setup.warm:
                self._put(fault)
        elif self._wait(self._is_training, self._deadline):
            due_at = clock.monotonic() + (fault.after_s or 0.0)
            self._wait(lambda: clock.monotonic() >= due_at, due_at)
            self._strike_or_put(fault)
        self._wait(lambda: self._struck(fault), self._deadline)
        finding = self._judge(fault)
        if finding.injection is not None:
            allowed_s = (finding.detect_budget_s or _UNDETECTED_S) + (finding.recover_budget_s or 0.0) + fault.hold_s
            self._wait(lambda: self._judge(fault).settled, clock.monotonic() + allowed_s + _GIVE_UP_S)
        elif self._board is not None:
            self._board.withdraw(fault.id)
        return self._judge(fault)

    def _goes_by_step(self, fault: Fault) -> bool:
        return fault.at_step is not None or fault.after_steps is not None

    def _put(self, fault: Fault) -> None:
        if self._board is None:
            return
        group = self._require_group(keep=True) if fault.kind is Kind.OOM else None
        self._board.put(fault, mark=fault.kind not in RANK_KINDS, group=group)

    def _strike_or_put(self, fault: Fault) -> None:
        if fault.kind in RANK_KINDS:
            self._put(fault)
        else:
            self._strike(fault, None)

    def _require_group(self, keep: bool = False) -> OwnGroup:
        group = injector.make_group()
        if isinstance(group, str):
            raise PlanError(f"oom needs a memory control group of its own, so that nothing else is harmed: {group}")
        if keep:
            self._groups.append(group.path)
        else:
            injector.remove_group(group.path)
        return group

    def _struck(self, fault: Fault) -> bool:
        """Whether it was carried out, or never will be. Does what a step was waited for."""
        if fault.kind not in RANK_KINDS and fault.id not in self._done:
            due = next((event for event in self._events("fault_due") if event.get("fault") == fault.id), None)
            if due is not None:
                self._strike(fault, injection_of(due))
        finding = self._judge(fault)
        return finding.injection is not None or finding.settled

    def _strike(self, fault: Fault, due: Injection | None) -> None:
        """Carry out what happens to a node or to etcd."""
        node = fault.node or 0
        agent = self._current(node)
        at = clock.monotonic()
        generation = due.generation if due is not None else self._generation(agent)
        self._done[fault.id] = Injection(fault.id, at, generation, step=due.step if due is not None else None)
        if fault.kind is Kind.ETCD_STOP and self._etcd is not None:
            self._stop_for(self._etcd.child, fault.hold_s)
        elif fault.kind is Kind.NET_CUT:
            self._stop_for(self._links[node].child, fault.hold_s)
        else:
            doomed = [agent.pid]
            if fault.kind is Kind.NODE_LOSS:
                own = {each.pid for each in (*self._agents, *self._helpers) if each is not agent}
                table = machinery.left_over([agent.mark], own)
                doomed = [agent.pid, *(entry.pid for entry in table)]
            injector.kill_together(doomed)
            self._back_at[node] = at + fault.hold_s

    def _stop_for(self, child: machinery.Child, seconds: float) -> None:
        child.send(signal.SIGSTOP)
        self._heal.append((clock.monotonic() + seconds, child))

    # -- what is going on ---------------------------------------------------------------------------------------

    @property
    def _deadline(self) -> float:
        return self._began_at + self._setup.timeout_s

    def _wait(self, condition: Callable[[], bool], until: float) -> bool:
        """Take in what happens until the condition holds, the time has come, or the job is over."""
        until = min(until, self._deadline)
        while True:
            for agent in self._agents:
                agent.tail.read()
            self._tend()
            if condition():
                return True
            now = clock.monotonic()
            if now >= until or not self._goes_on():
                self._require_start()
                return condition()
            later = [at for at, _ in self._heal] + list(self._back_at.values()) + [until]
            alive = [agent.pidfd for agent in self._agents if agent.alive]
            self._waiter.wait(max(0.0, min(min(later) - now, 0.2 if self._heal else 1.0)), alive)

    def _require_start(self) -> None:
        """Raise what an agent says about its options, when that is all it did."""
        for agent in self._agents:
            if not agent.alive and agent.process.returncode == ExitCode.USAGE and not agent.tail.events:
                raise PlanError(agent.last_line().removeprefix("error: "))

    def _tend(self) -> None:
        """What is due: a stopped process goes on, a lost node comes back."""
        now = clock.monotonic()
        for entry in [entry for entry in self._heal if entry[0] <= now]:
            self._heal.remove(entry)
            entry[1].send(signal.SIGCONT)
        for node, at in list(self._back_at.items()):
            if at <= now and not self._current(node).alive:
                del self._back_at[node]
                self._start_agent(node)

    def _goes_on(self) -> bool:
        return bool(self._back_at) or any(agent.alive for agent in self._agents)

    def _is_training(self) -> bool:
        return any(True for _ in self._events("training_resumed"))

    def _is_warm(self) -> bool:
        return all(is_warm(self._current(node).tail.events, self._setup.nproc) for node in range(self._setup.nodes))

    def _events(self, name: str) -> list[dict[str, object]]:
        return [dict(event) for agent in self._agents for event in agent.tail.events if event["event"] == name]

    def _current(self, node: int) -> Agent:
        return [agent for agent in self._agents if agent.node == node][-1]

    def _generation(self, agent: Agent) -> int:
        known = [event.get("generation") for event in agent.tail.events]
        return max((number for number in known if isinstance(number, int)), default=-1)

    def _lives(self) -> list[Life]:
        return [
            Life(agent.node, agent.began_at, agent.tail.events, agent.alive or agent.node in self._back_at)
            for agent in self._agents
        ]

    def _judge(self, fault: Fault) -> Finding:
        lives = self._lives()
        injection = self._done.get(fault.id) or injections(lives).get(fault.id)
        return judge(fault, injection, lives, self._setup.budgets, clock.monotonic())

    # -- end ----------------------------------------------------------------------------------------------------

    def _finish(self, stop: bool) -> None:
        if stop:
            for agent in self._agents:
                agent.send(signal.SIGTERM)
        if not self._wait(lambda: not self._goes_on(), self._deadline):
            self._problems.append(f"the job did not end within {self._setup.timeout_s:g} s (--timeout)")
            self._end_agents()
        for agent in self._agents:
            agent.tail.read()
        for node in range(self._setup.nodes):
            self._check_code(self._current(node), stop)

    def _check_code(self, agent: Agent, stopped: bool) -> None:
        code = agent.process.returncode
        if code not in ((0, ExitCode.TERMINATED) if stopped else (0,)) and not self._problems:
            self._problems.append(f"node {agent.node} ended with code {code}: {agent.last_line()}")

    def _look_for_leftovers(self) -> tuple[str, ...]:
        marks = [agent.mark for agent in self._agents]
        own = self._own_pids()
        machinery.wait_for(lambda: not machinery.left_over(marks, own), _LEFT_S)
        return tuple(f"pid {entry.pid} ({entry.name})" for entry in machinery.left_over(marks, own))

    def _own_pids(self) -> set[int]:
        return {child.pid for child in (*self._agents, *self._helpers)}

    def _report(self, left: tuple[str, ...]) -> Report:
        codes = tuple(self._current(node).process.returncode for node in range(self._setup.nodes))
        return Report(
            plan=self._plan,
            findings=tuple(self._judge(fault) for fault in self._plan.faults),
            steps=account(self._board.read_ledger() if self._board is not None else {}, not any(codes)),
            exit_codes=codes,
            left_over=left,
            problems=tuple(self._problems),
            wall_s=clock.monotonic() - self._began_at,
            runs=tuple(str(agent.folder) for agent in self._agents),
        )

    def _end_agents(self) -> None:
        """Twice SIGINT: the second one kills at once what the first one asks to save. Then by force."""
        for _ in range(2):
            for agent in self._agents:
                agent.send(signal.SIGINT)
            if machinery.wait_for(lambda: not any(agent.alive for agent in self._agents), _END_S / 10):
                return
        machinery.wait_for(lambda: not any(agent.alive for agent in self._agents), _END_S)
        for agent in self._agents:
            agent.send(signal.SIGKILL)
            agent.wait(_END_S)

    def _clear_up(self) -> None:
        """End everything; within some seconds."""
        for _, child in self._heal:
            child.send(signal.SIGCONT)
        if any(agent.alive for agent in self._agents):
            self._end_agents()
        marks, own = [agent.mark for agent in self._agents], self._own_pids()

        def gone() -> bool:
            left = machinery.left_over(marks, own)
            for entry in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(entry.pid, signal.SIGKILL)
            return not left

        machinery.wait_for(gone, _END_S)
        for child in (*self._agents, *self._helpers):
            child.close()
        machinery.wait_for(lambda: all(map(injector.remove_group, self._groups)), _LEFT_S)
        self._waiter.close()
