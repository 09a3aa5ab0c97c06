"""What ``ftctl`` can ask a running agent for. Each handler answers at once; what it sets going shows in the events.

A request is refused, with one line that says why, when it would do something else than what was asked: a restart that
the restart policy would turn into the end of the job, say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.control.control_socket import ControlServer, RequestError
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.state import Phase
from ftlaunch.launcher.decision.table import ALIVE
from ftlaunch.launcher.drill import handlers as drills
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.hearing.stacks import StackCollector, kernel_view
from ftlaunch.launcher.views import cluster
from ftlaunch.rendezvous.interface import ExclusionWish, Question, RendezvousError

if TYPE_CHECKING:
    from ftlaunch.launcher.control.office import Office

SOCKET_NAME = "control"
_MAX_REASON = 500
_STOP = "stop"
_STOP_LIMIT_S = 2.0


class Control:
    """The listening control socket. ``path`` is where, empty when there is none."""

    def __init__(self, server: ControlServer, path: str) -> None:
        self.path = path
        self._server = server

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        await self._server.close()
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


async def serve(office: Office, directory: str) -> Control:
    """Listen in ``directory``, a private one; empty: nowhere.

    Without a socket the job runs as well, only ``ftctl`` finds nobody to ask.
    """
    desk = Desk(office)
    server = ControlServer(
        {
            "status": desk.status,
            "dump": desk.dump,
            "restart": desk.restart,
            "stop": desk.stop,
            "exclude": desk.exclude,
            **drills.requests(office),
        }
    )
    path = os.path.join(directory, SOCKET_NAME) if directory else ""
    if path:
        try:
            await server.open(path)
        except OSError:
            path = ""
    return Control(server, path)


class Desk:
    """Answers requests about one job."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._began_at = clock.monotonic()
        self._stacks = StackCollector(office.dumps, office.config.environment)
        self._dumping = asyncio.Lock()
        self._cluster = cluster.Cluster(office.peers, self._describe)
        office.peers.serve(_STOP, self._stop_too)

    async def status(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state of the job, of all nodes that answer. About 0.1 ms for each rank here; others take two latencies.

        With ``this_node`` nobody else is asked.
        """
        from ftlaunch.launcher.views import overview

        state = self._office.agent.state
        nodes = len(state.world.members) if state.world is not None else 1
        others = (
            await self._cluster.others(state.generation, nodes) if nodes > 1 and not request.get("this_node") else ()
        )
        return overview.merge([self._describe(), *others])

    def _describe(self) -> Mapping[str, Any]:
        # Loaded when it is first asked for: most jobs are never looked at, and all of them start.
        from ftlaunch.launcher.views import present

        return present.this_node(self._office, self._began_at, clock.monotonic())

    async def dump(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The Python stacks of all ranks that live here; takes at most half a second, and nobody is hurt."""
        offset = self._rank_offset()
        workers = self._office.crew.workers
        alive = {offset + i: (i, worker) for i, worker in enumerate(workers) if worker.alive}
        async with self._dumping:
            texts = await self._stacks.dump(alive)
        ranks = [
            {"rank": rank, "pid": worker.pid, "stack": texts.get(rank, ""), "kernel": kernel_view(worker.pid)}
            for rank, (_, worker) in sorted(alive.items())
        ]
        return {"generation": self._office.agent.state.generation, "ranks": ranks}

    async def restart(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """End this generation and start the next one."""
        agent = self._office.agent
        state = agent.state
        if state.phase is Phase.JOINING and state.parked:
            raise RequestError("this node is a spare: ask a node at work")
        if state.phase not in ALIVE:
            raise RequestError(f"there is no generation to restart: the job is {state.phase.value}")
        reason = "restart asked for with ftctl" + _reason(request)
        event = ev.RestartRequested(state.generation, reason, progress=self._office.ear.progress())
        after = agent.preview(event)
        if after.ending is not None:
            raise RequestError(f"a restart now would end the job ({after.ending.reason}); ftctl stop ends it in order")
        agent.post(event)
        return {"generation": state.generation, "reason": reason}

    async def stop(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """End the job on all nodes, or with ``this_node`` this one's part in it: ranks get time to save.

        Tells who did not answer within two seconds: it ends when the first of the others leaves.
        """
        agent = self._office.agent
        state = agent.state
        if state.ending is not None or state.phase in (Phase.LEAVING, Phase.DONE):
            ending = f": {state.ending.reason}" if state.ending is not None else ""
            raise RequestError(f"the job is ending already{ending}")
        reason = "stopped with ftctl" + _reason(request)
        everywhere = self._office.config.rendezvous.max_nodes > 1 and not request.get("this_node")
        members = state.world.members if everywhere and state.world is not None else ()
        answers = None
        if len(members) > 1:
            asked = Question(state.generation, _STOP, f"{os.uname().nodename}{_reason(request)}")
            answers = await self._office.peers.ask(asked, _STOP_LIMIT_S)
        # The job is meant, whatever generation it has reached while the others were asked.
        generation = agent.state.generation
        agent.post(ev.StopRequested(generation, reason, everywhere=everywhere))
        told = 1 + (len(answers.said) if answers is not None else 0)
        answer = {"generation": generation, "reason": reason, "exit_code": int(ExitCode.TERMINATED)}
        # A spare, or a node that is still to join, does not know how many there are.
        silent = None if everywhere and not members else max(0, len(members) - told)
        return {**answer, "nodes": told, "silent": silent}

    async def _stop_too(self, question: Question) -> Mapping[str, Any]:
        reason = f"stopped with ftctl on {_one_line(question.detail) or 'another node'}"
        agent = self._office.agent
        agent.post(ev.StopRequested(agent.state.generation, reason, everywhere=True))
        return {}

    async def exclude(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave a node out of this and all later generations, or let it in again; takes a moment."""
        node, undo = request.get("node"), request.get("undo") is True
        if not isinstance(node, str) or not node:
            raise RequestError("which node?")
        wish = ExclusionWish(node, _one_line(request.get("reason")), undo, request.get("force") is True)
        try:
            answer = await self._office.agent.exclude(wish)
        except RendezvousError as error:
            raise RequestError(str(error)) from None
        if answer.changed:
            name, what = ("node_readmitted", "is let in again") if undo else ("node_excluded", "is left out")
            why = f" ({wish.reason})" if wish.reason else ""
            reason = f"node {answer.name} {what}, asked for with ftctl{why}: {answer.effect}"
            self._office.ear.tell(name, reason=reason, say=True, node=answer.name)
        return asdict(answer)

    def _rank_offset(self) -> int:
        world = self._office.agent.state.world
        return world.rank_offset if world is not None else 0


def _reason(request: Mapping[str, Any]) -> str:
    line = _one_line(request.get("reason"))
    return f": {line}" if line else ""


def _one_line(text: Any) -> str:
    if not isinstance(text, str):
        return ""
    line = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(line.split())[:_MAX_REASON]
