"""The agent's part in a drill of a running job: faults are armed over the control socket, and carried out at a step.

A fault that only the rank itself can bring about, and any that is to happen at an exact step, goes through the
directory that FTLAUNCH_DRILLS names; without it the agent does what it can from outside, when it hears of the step.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ftlaunch.heartbeat.watching.stalls import first_due
from ftlaunch.heartbeat.wire import Kind as MessageKind
from ftlaunch.launcher import clock
from ftlaunch.launcher.control.control_socket import RequestError

if TYPE_CHECKING:
    from ftlaunch.heartbeat.watching.listener import Heard
    from ftlaunch.heartbeat.wire import Message
    from ftlaunch.launcher.control.office import Office
    from ftlaunch.launcher.drill.board import Board, OwnGroup
    from ftlaunch.launcher.drill.plan import Fault

_STEPS = (MessageKind.BEAT, MessageKind.TICK)
_VARIABLE = "FTLAUNCH_DRILLS"
_REMOVE_AFTER_S = 0.5
_REMOVE_TRIES = 20


def requests(office: Office) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]]:
    """What the control socket is to answer for drills."""
    desk = DrillDesk(office)
    folder = office.config.environment.get(_VARIABLE)
    if folder:
        desk.listen()
        desk.make_board(folder)
    return {"drill": desk.drill, "drill-end": desk.end}


class Armed:
    """A fault that is still to come. ``due``: its time has come, and it waits for a step only."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.left = fault.times
        self.due = False
        self.by_rank = False
        self.not_before = 0
        """The first generation that it may happen in: once in each."""
        self.to_put = False
        self.group: OwnGroup | None = None
        self.timer: asyncio.TimerHandle | None = None

    def fits(self, rank: int, step: int, count: int) -> bool:
        """Whether this step of this rank is the moment, for a fault that the agent carries out."""
        fault = self.fault
        if self.by_rank or (fault.rank is not None and fault.rank != rank):
            return False
        if isinstance(fault.at_step, int):
            return step >= fault.at_step
        if isinstance(fault.after_steps, int):
            return count >= fault.after_steps
        return self.due


class DrillDesk:
    """Answers ``drill`` and ``drill-end``, and carries faults out."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._armed: dict[str, Armed] = {}
        self._groups: dict[str, OwnGroup] = {}
        self._board: Board | None = None
        self._serial = 0

    def listen(self) -> None:
        """Hear every message of the ranks."""
        self._office.ear.on_message = self._hear

    def make_board(self, folder: str) -> None:
        """Have the directory there before the ranks look for it; why it cannot be used is said when it is needed."""
        from ftlaunch.launcher.drill.board import open_board
        from ftlaunch.launcher.drill.plan import PlanError

        with contextlib.suppress(PlanError):
            open_board(folder)

    # -- requests -----------------------------------------------------------------------------------------------

    async def drill(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arm one fault, as :func:`ftlaunch.launcher.drill.plan_file.fault_from` reads it."""
        from ftlaunch.launcher.drill.plan import PlanError
        from ftlaunch.launcher.drill.plan_file import fault_from

        try:
            armed = Armed(self._name(fault_from(request.get("fault"))))
            self._admit(armed)
        except PlanError as error:
            raise RequestError(str(error)) from None
        self._armed[armed.fault.id] = armed
        self.listen()
        self._arm(armed)
        return {"fault": armed.fault.id, "by": "rank" if armed.by_rank else "agent"}

    async def end(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take back what has not happened yet: one fault, or all."""
        wanted = request.get("fault")
        ids = list(self._armed) if wanted is None else [wanted] if wanted in self._armed else []
        for fault_id in ids:
            self._forget(self._armed[fault_id])
        return {"withdrawn": ids}

    def _name(self, fault: Fault) -> Fault:
        self._serial += 1
        # Unlike any of an earlier agent that used the same directory.
        return replace(fault, id=f"{os.getpid()}-{self._serial}-{fault.kind.value}")

    def _admit(self, armed: Armed) -> None:
        """Refuse, with one line, what cannot be done here; choose who does it."""
        from ftlaunch.launcher.drill.plan import IN_RANK, RANK_KINDS, Kind

        fault = armed.fault
        if fault.kind in (Kind.NET_CUT, Kind.ETCD_STOP):
            raise RequestError(f"{fault.kind.value} is done to what a drill has started: ftctl drill run --nodes 2")
        if not self._office.config.heartbeat.enabled and (fault.at_step or fault.after_steps):
            raise RequestError("this job runs with --heartbeat off: there is no step to wait for; use --after")
        world = self._office.agent.state.world
        if fault.node is not None and fault.node != (world.group_rank if world is not None else 0):
            raise RequestError(f"this is not node {fault.node}: ask on that node")
        if isinstance(fault.rank, str):
            raise RequestError("say which rank: nothing is left to chance in a running job")
        if fault.rank is not None:
            self._local_rank(fault.rank)
        if fault.kind in RANK_KINDS:
            folder = self._office.config.environment.get(_VARIABLE, "")
            if fault.kind in IN_RANK and not folder:
                raise RequestError(
                    f"{fault.kind.value} has to be done by the rank itself, which looks for faults only in a job that "
                    f"was started with {_VARIABLE}=DIRECTORY in its environment"
                )
            by_time = fault.at_step is None and fault.after_steps is None
            # By time a rank is also hit in the middle of a step, or when it makes none at all.
            armed.by_rank = bool(folder) and (fault.kind in IN_RANK or not by_time)
        if armed.by_rank:
            from ftlaunch.launcher.drill.board import open_board

            self._board = open_board(self._office.config.environment[_VARIABLE])
        if fault.kind is Kind.OOM:
            armed.group = self._make_group()

    def _make_group(self) -> OwnGroup:
        from ftlaunch.launcher.drill.injector import make_group

        group = make_group()
        if isinstance(group, str):
            raise RequestError(f"oom needs a memory control group of its own, so that nothing else is harmed: {group}")
        return group

    def _local_rank(self, rank: int) -> int:
        config, world = self._office.config, self._office.agent.state.world
        if world is None and config.rendezvous.max_nodes > 1:
            raise RequestError("there is no generation yet, so it is not known which ranks are here")
        offset, count = world.rank_offset if world is not None else 0, config.workers.nproc
        if not offset <= rank < offset + count:
            here = f"{offset} to {offset + count - 1}" if count > 1 else str(offset)
            raise RequestError(f"there is no rank {rank} on this node, only {here}")
        return rank - offset

    # -- when ---------------------------------------------------------------------------------------------------

    def _arm(self, armed: Armed, after_s: float | None = None) -> None:
        fault = armed.fault
        if fault.at_step is not None or fault.after_steps is not None:
            armed.to_put = armed.by_rank
            if armed.by_rank and not armed.not_before:
                self._put(armed)
            return
        first_s = fault.after_s if fault.after_s is not None else fault.every_s
        delay_s = (first_s or 0.0) if after_s is None else after_s
        armed.timer = asyncio.get_running_loop().call_later(delay_s, self._on_time, armed)

    def _on_time(self, armed: Armed) -> None:
        from ftlaunch.launcher.decision.state import Phase
        from ftlaunch.launcher.drill.plan import RANK_KINDS

        armed.timer = None
        armed.due = True
        if armed.by_rank:
            self._put(armed)
        elif armed.fault.kind not in RANK_KINDS:
            self._carry_out(armed, 0, None)
        elif self._office.agent.state.phase is Phase.RUNNING:
            local_rank = self._local_rank(int(armed.fault.rank or 0))
            workers = self._office.crew.workers
            if local_rank < len(workers) and workers[local_rank].alive:
                self._carry_out(armed, local_rank, self._last_step(local_rank))

    def _put(self, armed: Armed) -> None:
        armed.to_put = False
        if self._board is None:
            return
        if armed.group is not None:
            self._groups[armed.fault.id] = armed.group
        try:
            self._board.put(armed.fault, group=armed.group)
        except OSError as error:
            self._fail(armed, f"{self._board.folder}: {error.strerror}")

    def _last_step(self, local_rank: int) -> int | None:
        ranks = self._office.ear.watch.tracks.ranks
        if local_rank >= len(ranks):
            return None
        track = ranks[local_rank]
        return track.step if track.step is not None else track.ticks or track.beats

    # -- what ---------------------------------------------------------------------------------------------------

    def _hear(self, heard: Heard) -> None:
        message = heard.message
        if message.kind in _STEPS:
            for armed in list(self._armed.values()):
                self._consider(armed, message)
        elif message.kind is MessageKind.HELLO and message.payload.get("phase") == "drill":
            self._struck_itself(message)

    def _consider(self, armed: Armed, message: Message) -> None:
        if message.generation < armed.not_before:
            return
        if armed.to_put:
            self._put(armed)
        tracks = self._office.ear.watch.tracks
        track = tracks.ranks[message.local_rank]
        count = track.ticks if message.kind is MessageKind.TICK else track.beats
        step = count if message.step is None else message.step
        if armed.fits(tracks.first_rank + message.local_rank, step, count):
            self._carry_out(armed, message.local_rank, step)

    def _carry_out(self, armed: Armed, local_rank: int, step: int | None) -> None:
        from ftlaunch.launcher.drill import injector
        from ftlaunch.launcher.drill.plan import RANK_KINDS

        fault = armed.fault
        armed.due = False
        self._note(fault.id, fault.kind.value, local_rank, step, clock.monotonic())
        try:
            if fault.kind in RANK_KINDS:
                injector.strike_rank(fault.kind, self._office.crew.workers[local_rank])
            else:
                injector.strike_node(fault.kind)
        except OSError as error:
            self._fail(armed, error.strerror or str(error))
            return
        self._next(armed)

    def _struck_itself(self, message: Message) -> None:
        payload = message.payload
        fault_id, kind, at, step = (payload.get(key) for key in ("fault", "kind", "at", "step"))
        if not isinstance(fault_id, str) or not isinstance(at, float):
            return
        self._note(fault_id, str(kind), message.local_rank, step if isinstance(step, int) else None, at)
        if fault_id in self._groups:
            self._remove_later(self._groups.pop(fault_id), _REMOVE_TRIES)
        if fault_id in self._armed:
            self._next(self._armed[fault_id])

    def _note(self, fault_id: str, kind: str, local_rank: int, step: int | None, at: float) -> None:
        """The event that everything is measured from. ``at``: CLOCK_MONOTONIC seconds, just before the deed."""
        watch = self._office.ear.watch
        self._office.ear.tell(
            "fault_due" if kind == "mark" else "fault_injected",
            reason=f"drill: {kind}" + (f" at step {step}" if step is not None else ""),
            generation=watch.tracks.generation,
            rank=watch.tracks.first_rank + local_rank,
            fault=fault_id,
            kind=kind,
            step=step,
            at=at,
            limit_s=self._limit_s(local_rank),
        )

    def _limit_s(self, local_rank: int) -> float | None:
        """How long the rank may be silent from now on."""
        watch = self._office.ear.watch
        ranks = watch.tracks.ranks
        due = first_due(ranks[local_rank], watch.tracks, watch.limits) if local_rank < len(ranks) else None
        return due.limit.seconds if due is not None and math.isfinite(due.limit.seconds) else None

    def _next(self, armed: Armed) -> None:
        armed.left -= 1
        armed.not_before = self._office.ear.watch.tracks.generation + 1
        if armed.left <= 0:
            self._armed.pop(armed.fault.id, None)
            return
        if armed.fault.kind.value == "oom":
            with contextlib.suppress(RequestError):
                armed.group = self._make_group()
        self._arm(armed, armed.fault.every_s)

    def _fail(self, armed: Armed, problem: str) -> None:
        self._forget(armed)
        reason = f"drill: {armed.fault.kind.value} of {armed.fault.target} could not be carried out: {problem}"
        generation = self._office.ear.watch.tracks.generation
        self._office.ear.tell("fault_failed", reason=reason, generation=generation, fault=armed.fault.id)

    def _forget(self, armed: Armed) -> None:
        self._armed.pop(armed.fault.id, None)
        if armed.timer is not None:
            armed.timer.cancel()
        if armed.by_rank and self._board is not None:
            self._board.withdraw(armed.fault.id)
        group = self._groups.pop(armed.fault.id, armed.group)
        if group is not None:
            self._remove_later(group, _REMOVE_TRIES)

    def _remove_later(self, group: OwnGroup, tries: int) -> None:
        from ftlaunch.launcher.drill.injector import remove_group

        if not remove_group(group.path) and tries > 0:
            again = partial(self._remove_later, group, tries - 1)
            asyncio.get_running_loop().call_later(_REMOVE_AFTER_S, again)
