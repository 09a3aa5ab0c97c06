"""One job on one node: builds the parts, runs the agent, tells how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher import clock, commands, meeting
from ftlaunch.launcher.agent import Agent
from ftlaunch.launcher.config import CommandKind, Config, RestartConfig, StandbyMode
from ftlaunch.launcher.control.office import Office
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.generations import GenerationRecord
from ftlaunch.launcher.decision.policy import Verdict, judge
from ftlaunch.launcher.decision.recover import SAVED, most_saved
from ftlaunch.launcher.decision.state import State
from ftlaunch.launcher.ending import Ending
from ftlaunch.launcher.errors import FtlaunchError
from ftlaunch.launcher.hearing.hearing import Hearing
from ftlaunch.launcher.hearing.peers import Peers
from ftlaunch.launcher.host import kernel, numa, parent, ulimits
from ftlaunch.launcher.journal.retention import prune_in_background
from ftlaunch.launcher.journal.rundir import RunDir, owner_facts, point_latest, this_owner
from ftlaunch.launcher.narrator import Narrator, Stopped
from ftlaunch.launcher.node.node import Node, WatchedCrew
from ftlaunch.launcher.output.console import Console
from ftlaunch.launcher.output.pump import OutputPump
from ftlaunch.launcher.place import Place, open_place
from ftlaunch.launcher.processes import abandoned, bystanders, signals
from ftlaunch.launcher.processes.guard import Guard
from ftlaunch.launcher.ranks import staleness
from ftlaunch.launcher.ranks.crew import Crew
from ftlaunch.launcher.ranks.output import RankOutput
from ftlaunch.launcher.ranks.plan import Plan, interpreter_argv
from ftlaunch.launcher.ranks.standby import StandbyPool
from ftlaunch.launcher.ranks.wires import DumpFiles, Flags, Lifeline, Wires
from ftlaunch.launcher.say import Say, speak
from ftlaunch.launcher.secrecy import redact
from ftlaunch.launcher.views.live import Views
from ftlaunch.rendezvous.interface import Member, Publish, RendezvousError, World

if TYPE_CHECKING:
    from ftlaunch.launcher.cli.command_line import Parsed
    from ftlaunch.launcher.node.keeper import NodeKeeper
    from ftlaunch.launcher.resume import Resume


def run_job(parsed: Parsed, early: signals.EarlySignals) -> int:
    """Run the job to its end and return the agent's exit code.

    Raises :class:`FtlaunchError` for what is found wrong before anything was spawned.
    """
    config = parsed.config
    kernel.require_pidfd()
    ulimits.require_room(config.workers.nproc, config.rendezvous.max_nodes)
    console = Console()
    say = speak(console, config.logs.level)
    report = ""
    try:
        for note in parsed.notes:
            say.notice(note)
        for info in parsed.infos:
            say.info(info)
        if hint := parent.hint_of_deaf_shell():
            say.warning(hint)
        place = open_place(config, say)
        job = Job(config, console, say, place, early)
        code, report = asyncio.run(job.run())
        return code
    except RendezvousError as error:
        raise meeting.translated(error) from None
    finally:
        console.finish(report)


class Job:
    """The parts of one run, and their order of construction and release."""

    def __init__(self, config: Config, console: Console, say: Say, place: Place, early: signals.EarlySignals) -> None:
        self.config = config
        self.say = say
        self.place = place
        self.early = early
        self.marker = secrets.token_hex(16)
        self.pump = OutputPump(console, config.logs, place.layout)
        self.lifeline = Lifeline()
        self.dumps = DumpFiles(config.workers.nproc)
        self.flags = Flags()
        self.ending = Ending(config, place, self.pump, say)
        self.views = Views(config, place.events, say, place.run.run_id if place.run is not None else "")

    async def run(self) -> tuple[int, str]:
        """Returns the exit code and the failure report, empty after a success."""
        hearing: Hearing | None = None
        guard: Guard | None = None
        try:
            hearing = Hearing(self.config.heartbeat, self.config.environment, self.dumps, self._tell)
            alone = self.config.rendezvous.backend == "local"
            guard = Guard(self.marker, hearing.endpoint.directory, None if alone else self.flags.writable)
            return await self._run_with(hearing, guard)
        except FtlaunchError as error:
            self.ending.note(int(error.exit_code), str(error))
            raise
        finally:
            self.views.close()
            self.pump.close()
            if hearing is not None:
                hearing.close()
            self.place.events.close()
            self.dumps.close()
            self.flags.close()
            self.lifeline.close()
            if guard is not None:
                guard.dismiss()

    async def _run_with(self, hearing: Hearing, guard: Guard) -> tuple[int, str]:
        agent, crew, narrator, node, peers = self._build(hearing)
        run = str(self.place.run.path) if self.place.run is not None else ""
        office = Office(agent, crew, hearing, narrator, self.config, self.dumps, run, peers)
        control = await commands.serve(office, hearing.endpoint.directory)
        self._settle_in(crew, guard, control.path)
        await self.views.open(hearing.watch, crew.pool.ready if crew.pool is not None else None)
        signals.attach(asyncio.get_running_loop(), self._signals(), partial(_on_signal, agent, hearing))
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, partial(_on_child, crew, guard, hearing))
        hearing.start(agent.post, crew)
        for signum in self.early.received:
            asyncio.get_running_loop().call_soon(agent.post, ev.SignalReceived(signum))
        failed = False
        try:
            end = await agent.run()
            failed = end.exit_code != 0
        finally:
            narrator.settle()
            await node.close(failed)
            if crew.pool is not None:
                crew.pool.close()
            await agent.close()
            await control.close()
            signals.detach(asyncio.get_running_loop(), (*self._signals(), signal.SIGCHLD))
        self.pump.close()
        self.views.conclude()
        return self.ending.conclude(end, agent.state, narrator)

    def _build(self, hearing: Hearing) -> tuple[Agent, Crew, Narrator, Node, Peers]:
        binding = numa.affinity(self.config)
        for note in binding.notes:
            self.say.warning(note)
        wires = Wires(self.marker, hearing.socket_path, self.lifeline, self.dumps, self.flags)
        plan = Plan(self.config, wires, binding.cpus, self.place.layout)
        narrator = Narrator(self.place.events, self.place.run, self.say, lambda: _stopped(crew))
        resume = self._make_resume()
        rendezvous = meeting.make_rendezvous(
            self.config, partial(_publish, resume.publish if resume is not None else None)
        )
        rendezvous.tell_trust(self.flags.ranks_gone_by)
        peers = Peers(rendezvous)
        hearing.consult(peers)
        agent = Agent(
            State(
                slots=self.config.workers.nproc,
                grow=self.config.rendezvous.grow,
                preempt_signals=frozenset(self.config.stop.preempt_signals),
                joins_late=resume is not None or bool(self.config.node.health_check),
            ),
            lambda history, now: _judge(self.config.restarts, agent.state.spent_before, history, now),
            rendezvous,
            narrator,
        )
        if resume is not None:
            agent.prepare_with(resume.offers)
        output = RankOutput(self.pump, self.config.workers.role)
        crew = Crew(self.config.stop, plan.ranks, output, hearing, agent.post, agent.begin)
        crew.helpers = bystanders.PIDS
        crew.pool = self._make_pool(plan, output, agent)
        crew.on_evidence = narrator.add_evidence
        crew.teach = agent.teach
        crew.ask_to_save = self.flags.ask_to_save
        crew.ranks_are = self.flags.ranks_are
        node = self._make_node(agent, crew, narrator, hearing)
        agent.employ(WatchedCrew(crew, node))
        agent.progress = hearing.progress
        return agent, crew, narrator, node, peers

    def _make_node(self, agent: Agent, crew: Crew, narrator: Narrator, hearing: Hearing) -> Node:
        own_paths = [str(self.place.run.path)] if self.place.run is not None else []
        node = narrator.node = Node(
            self.config, own_paths, agent, lambda: self._make_keeper(node, agent, crew, hearing)
        )
        agent.prepare_with(node.prepare)
        agent.reclaim_with(node.reclaim)
        return node

    def _make_keeper(self, node: Node, agent: Agent, crew: Crew, hearing: Hearing) -> NodeKeeper:
        from ftlaunch.launcher.evidence.inquiry import Inquiry
        from ftlaunch.launcher.node.facts import Facts
        from ftlaunch.launcher.node.keeper import NodeKeeper

        keeper = NodeKeeper(self.config, self.marker, node, agent, self._tell)
        keeper.standbys = lambda: crew.pool.pids() if crew.pool is not None else ()
        keeper.inquiry = Inquiry(Facts(self.pump, hearing, keeper, self.say, self.flags.take_ended))
        return keeper

    def _make_pool(self, plan: Plan, output: RankOutput, agent: Agent) -> StandbyPool | None:
        command = self.config.command
        if self.config.standby.mode is StandbyMode.OFF or command.kind is CommandKind.BINARY:
            return None
        if ulimits.files_left() < ulimits.files_needed(
            self.config.workers.nproc, True, self.config.rendezvous.max_nodes
        ):
            self.say.warning("no standbys: too few open files are allowed for them; raise the limit (ulimit -n)")
            return None
        paths = staleness.watched_paths(command.interpreter, command.target)
        return StandbyPool(
            self.config.standby,
            lambda: plan.ranks(agent.state.world or _alone(self.config)),
            (*interpreter_argv(command), "--standby"),
            output,
            partial(staleness.fingerprint, paths),
            self._tell,
        )

    def _make_resume(self) -> Resume | None:
        if self.config.checkpoints.directory is None:
            return None
        from ftlaunch.launcher.resume import Resume

        return Resume(self.config.checkpoints, self.config.environment, self._tell)

    def _tell(self, name: str, *, reason: str = "", say: bool = False, **fields: Any) -> None:
        """An event of the parts that decide nothing."""
        self.place.events.write(name, reason=reason or None, **fields)
        if say:
            self.say.notice(reason)

    def _settle_in(self, crew: Crew, guard: Guard, control: str) -> None:
        if not kernel.become_subreaper():
            self.say.warning("this system allows no child subreaper: processes that leave their rank may be missed")
        try:
            guard.start()
        except OSError as error:
            self.say.warning(f"no guardian ({error.strerror}): if the agent is killed, ranks' own children may live on")
        if guard.pid is not None:
            crew.helpers.add(guard.pid)
        if self.place.run is not None:
            self._describe(self.place.run, control)
            abandoned.end_abandoned(self.place.run, self.say.warning)

    def _describe(self, run: RunDir, control: str) -> None:
        command = self.config.command
        run.describe(
            {
                "id": run.run_id,
                abandoned.MARK: self.marker,
                **owner_facts(this_owner(os.uname().nodename)),
                "job": self.config.rendezvous.job_id,
                "command": redact([command.target, *command.args]),
                "nproc": self.config.workers.nproc,
                "started": clock.wall(),
                "logs": str(self.place.layout.root or ""),
                "control": control,
            },
            self.say.warning,
        )
        point_latest(run)
        prune_in_background(run)

    def _signals(self) -> Collection[int]:
        stop = self.config.stop
        return {*(stop.signals or signals.DEFAULT_SIGNALS), *stop.preempt_signals}


def _judge(config: RestartConfig, spent: int, history: tuple[GenerationRecord, ...], now: float) -> Verdict:
    """``spent``: restarts of the job before this agent joined it; they count as well."""
    if config.max_restarts is not None and spent:
        config = replace(config, max_restarts=max(0, config.max_restarts - spent))
    return judge(history, now, config, random.random())


def _publish(choose: Publish | None, offers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {SAVED: most_saved(offers), **(choose(offers) if choose is not None else {})}


def _alone(config: Config) -> World:
    """A world for the standbys of a spare. The order that makes one a rank tells it the real one."""
    slots = config.workers.nproc
    return World(0, (Member("", "", 0, slots),), 0, 0, slots, "", 0, 0, config.rendezvous.job_id)


def _stopped(crew: Crew) -> Stopped:
    teardown = crew.teardown
    return Stopped(teardown.killed, teardown.asked) if teardown is not None else Stopped()


def _on_signal(agent: Agent, hearing: Hearing, signum: int) -> None:
    # Whether ranks poll should_save() decides how they are asked to end: what they said before it counts.
    hearing.listen()
    agent.post(ev.SignalReceived(signum))


def _on_child(crew: Crew, guard: Guard, hearing: Hearing) -> None:
    """SIGCHLD: a child died, stopped or went on."""
    before = guard.pid
    with contextlib.suppress(OSError):
        if guard.check() and guard.pid is not None:
            crew.helpers.discard(before or 0)
            crew.helpers.add(guard.pid)
    crew.reap()
    hearing.children_changed()
