"""The one loop: events in, decisions out, actions carried out. What decides is in :mod:`.decision`.

Order is guaranteed: an event is decided on only after all actions of the event before it were begun. Actions that take
time run as tasks and come back as events.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.launcher import clock
from ftlaunch.launcher.decision import actions as do
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.decide import decide
from ftlaunch.launcher.decision.generations import GenerationRecord
from ftlaunch.launcher.decision.state import Judge, State
from ftlaunch.launcher.errors import InvalidTransition, NodeUnfit, UsageError
from ftlaunch.launcher.secrecy import hide, is_secret
from ftlaunch.rendezvous.interface import (
    Exclusion,
    ExclusionAnswer,
    ExclusionWish,
    Joining,
    LeaseLost,
    Lesson,
    MembershipChanged,
    Outcome,
    PeerFailed,
    Rendezvous,
    RendezvousError,
    RendezvousEvent,
    SettingsError,
)

Prepare = Callable[[Sequence[GenerationRecord]], Coroutine[Any, Any, Mapping[str, Any]]]
"""What comes before a rendezvous, given the history so far: facts for the leader, or :class:`NodeUnfit`."""

_log = logging.getLogger(__name__)
_STORY = 50
_FINISH_LIMIT_S = 300.0
"""How long a node whose ranks have ended well waits for a meeting point that is out of reach."""
_END_LIMIT_S = 15.0
"""How long to try to tell the others that the job is over. Who cannot be reached learns it when the lease ends."""


class Crew(Protocol):
    """Starts, watches and stops the ranks of this node."""

    def start(self, world: Any) -> None:
        """Start all ranks; WorkersStarted or SpawnFailed follows."""

    def stop(self, action: do.StopWorkers) -> None:
        """Stop them, or make a stop under way more urgent; WorkersGone or WorkersUnkillable follows."""

    def warm_up(self, lesson: Lesson) -> None:
        """Let standbys import this."""


class Narrator(Protocol):
    """Writes what happens: events, incidents, lines for the user."""

    def record(self, action: do.Record, state: State) -> None:
        """Write one event."""

    def conclude(self, action: do.Conclude, state: State) -> None:
        """Write the incident of a failed generation."""


class Agent:
    """Runs one job on one node until its exit code is known."""

    def __init__(self, state: State, judge: Judge, rendezvous: Rendezvous, narrator: Narrator) -> None:
        self.state = state
        self.story: deque[str] = deque(maxlen=_STORY)
        self.phase_since = 0.0
        """When the phase was entered."""
        self._judge = judge
        self._rendezvous = rendezvous
        self._met = False
        self._crew: Crew | None = None
        self._narrator = narrator
        self._inbox: deque[ev.Event] = deque()
        self._deciding = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: asyncio.Task[None] | None = None
        self._exit: asyncio.Future[do.Exit] | None = None
        self._reclaim: Callable[[int], Coroutine[Any, Any, ev.Event]] | None = None
        self._preparations: list[Prepare] = []
        self.progress: Callable[[], Progress] = Progress
        """Tells how far the running generation came on this node."""

    def employ(self, crew: Crew) -> None:
        """Who starts and stops the ranks; needs the agent's :meth:`post` itself, so it comes second."""
        self._crew = crew

    def reclaim_with(self, reclaim: Callable[[int], Coroutine[Any, Any, ev.Event]]) -> None:
        """Use this to get GPU memory back; it returns Reclaimed or NodeUnhealthy."""
        self._reclaim = reclaim

    def prepare_with(self, prepare: Prepare) -> None:
        """Run this before the node joins a generation, beside all others given; the node joins when all are done."""
        self._preparations.append(prepare)

    async def run(self) -> do.Exit:
        """Run to the end. Raises :class:`InvalidTransition` only for a defect of ftlaunch.

        Raises :class:`UsageError`, before anything was started, when the settings of the rendezvous cannot work.
        """
        self._exit = asyncio.get_running_loop().create_future()
        try:
            self._rendezvous.start(self._hear)
        except SettingsError as error:
            raise UsageError(str(error)) from None
        self._met = True
        self.post(ev.Started())
        try:
            return await self._exit
        finally:
            for task in self._tasks:
                task.cancel()

    async def close(self) -> None:
        """Release the rendezvous, if it could be started; bounded."""
        if self._met:
            await self._rendezvous.close()

    def teach(self, lesson: Lesson) -> None:
        """Our ranks have imported this by their first step: one node tells the spares, though no secrets."""
        if self.state.world is not None and self.state.world.group_rank == 0:
            environment = {
                name: text
                for name, text in lesson.environment.items()
                if not is_secret(name) and (text is None or hide(text) == text)
            }
            self._rendezvous.teach(replace(lesson, environment=environment))

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """Nodes that are left out of the job, as far as this one has heard."""
        return self._rendezvous.exclusions if self._met else ()

    async def exclude(self, wish: ExclusionWish) -> ExclusionAnswer:
        """See :meth:`ftlaunch.rendezvous.interface.Rendezvous.exclude`."""
        if not self._met:
            raise RendezvousError("the job is only just starting")
        return await self._rendezvous.exclude(wish)

    def preview(self, event: ev.Event) -> State:
        """The state that the event would lead to now. Nothing happens."""
        return decide(self.state, event, clock.monotonic(), self._judge).state

    def post(self, event: ev.Event) -> None:
        """Hand in an event. Safe to call from within an action: it is queued behind the current one."""
        if isinstance(event, ev.WorkerExited) and event.exit_code == -signal.SIGKILL and self._met:
            # Of an agent that stood still the guardian has ended the ranks, and what they ended of comes first.
            self._rendezvous.check_lease()
        self._inbox.append(event)
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._inbox:
                self._answer(self._inbox.popleft())
        except Exception as error:  # noqa: BLE001
            # The top of the loop: whatever is wrong ends the job loudly instead of leaving it half alive.
            self._fail(error)
        finally:
            self._deciding = False

    def _hear(self, event: RendezvousEvent) -> None:
        if isinstance(event, (PeerFailed, MembershipChanged, LeaseLost)):
            self.post(ev.ProgressNoted(event.generation, self.progress()))
        self.post(event)

    def _answer(self, event: ev.Event) -> None:
        before = self.state.phase
        decision = decide(self.state, event, clock.monotonic(), self._judge)
        self.state = decision.state
        if self.state.phase is not before:
            self.phase_since = clock.monotonic()
        self.story.append(f"{before.value}: {event!r} -> {decision.state.phase.value}: {decision.reason}")
        _log.debug("%s", self.story[-1])
        for action in decision.actions:
            self._perform(action)

    def _perform(self, action: do.Action) -> None:
        if isinstance(action, do.Record):
            self._narrator.record(action, self.state)
        elif isinstance(action, (do.StopWorkers, do.StartWorkers, do.WarmUp)):
            self._direct(action)
        elif isinstance(action, do.Join):
            self._withdraw_leave()
            self._join(action.joining)
        elif isinstance(action, do.Announce):
            self._rendezvous.announce_failure(action.generation, action.reason)
        elif isinstance(action, do.Conclude):
            self._narrator.conclude(action, self.state)
        elif isinstance(action, do.WakeAt):
            delay = max(0.0, action.at - clock.monotonic())
            asyncio.get_running_loop().call_later(delay, self.post, ev.BackoffOver(action.generation))
        else:
            self._perform_long(action)

    def _direct(self, action: do.StartWorkers | do.StopWorkers | do.WarmUp) -> None:
        if self._crew is None:
            raise InvalidTransition("there is nobody to start or stop ranks")
        if isinstance(action, do.StartWorkers):
            self._crew.start(action.world)
        elif isinstance(action, do.StopWorkers):
            self._crew.stop(action)
        else:
            self._crew.warm_up(action.lesson)

    def _perform_long(self, action: do.Reclaim | do.Leave | do.Exit) -> None:
        if isinstance(action, do.Reclaim):
            self.begin(self._do_reclaim(action.generation))
        elif isinstance(action, do.Leave):
            self._leaving = self.begin(self._do_leave(action))
        elif self._exit is not None and not self._exit.done():
            self._exit.set_result(action)

    async def _do_reclaim(self, generation: int) -> None:
        event: ev.Event = ev.Reclaimed(generation)
        if self._reclaim is not None:
            event = await self._reclaim(generation)
        self.post(event)

    async def _do_leave(self, action: do.Leave) -> None:
        limit_s = _FINISH_LIMIT_S if action.outcome is Outcome.FINISHED else _END_LIMIT_S
        code = await self._rendezvous.finish(
            action.generation, action.outcome, action.exit_code, action.reason, limit_s
        )
        self.post(ev.Left(code))

    def _join(self, joining: Joining) -> None:
        if self._preparations:
            self.begin(self._prepare_and_join(joining))
        else:
            self._rendezvous.join(joining)

    async def _prepare_and_join(self, joining: Joining) -> None:
        history = self.state.history
        try:
            found = await asyncio.gather(*(prepare(history) for prepare in self._preparations))
        except NodeUnfit as error:
            self.post(ev.NodeUnhealthy(self.state.generation, str(error)))
            return
        offers = {name: fact for facts in (joining.offers, *found) for name, fact in facts.items()}
        self._rendezvous.join(replace(joining, offers=offers))

    def _withdraw_leave(self) -> None:
        """A peer failed while we waited for it at the end: our ranks are needed once more."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the loop's other work; its failure ends the agent, loudly."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, InvalidTransition) and not error.story:
            error.story = tuple(self.story)
        if self._exit is not None and not self._exit.done():
            self._exit.set_exception(error)
