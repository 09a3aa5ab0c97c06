"""The ``c10d`` and ``static`` rendezvous, as one node sees it; see the package for what they are.

Runs on the agent's loop; connections are served by a thread of their own, which decides nothing about this node.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ftlaunch.rendezvous.common.asking import Asking, QuestionRecord
from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.decide import View
from ftlaunch.rendezvous.common.exclusion import ANSWER_S
from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.common.node import NodeDescription
from ftlaunch.rendezvous.common.part import Part, Wanted, first_offer, new_attempt
from ftlaunch.rendezvous.common.peers import Doorbell
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureRecord,
    FinishRecord,
    GrowthRecord,
    LessonRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.trust import Trust
from ftlaunch.rendezvous.common.waiting import WaitAtEnd
from ftlaunch.rendezvous.hub import settings as configuration
from ftlaunch.rendezvous.hub.asking import HubCarrier
from ftlaunch.rendezvous.hub.frames import Hello, read_answer, wish_frame
from ftlaunch.rendezvous.hub.link import Link
from ftlaunch.rendezvous.hub.server import Hub, listen_at
from ftlaunch.rendezvous.hub.settings import HubSettings
from ftlaunch.rendezvous.hub.vigil import Vigil
from ftlaunch.rendezvous.hub.whereabouts import whereabouts
from ftlaunch.rendezvous.interface import (
    Answers,
    Closed,
    Conclude,
    Exclusion,
    ExclusionAnswer,
    ExclusionWish,
    Joining,
    Lesson,
    OnEvent,
    Outcome,
    Publish,
    Question,
    RendezvousError,
    Respondent,
    SettingsError,
    WorldAgreed,
)

log = logging.getLogger("ftlaunch.rendezvous")

_CLOSE_S = 1.0
_DRAIN_S = 5.0
_LEAVE_S = 1.0


class HubRendezvous:
    """One node's part in the rendezvous of a job; implements :class:`~ftlaunch.rendezvous.interface.Rendezvous`.

    ``publish`` makes, on the hosting node, what all nodes get from what all nodes offer.
    """

    def __init__(self, settings: HubSettings, node: NodeDescription, publish: Publish = first_offer) -> None:
        self._settings = settings
        self._node = node
        self._publish = publish
        self._wanted = Wanted(settings.job_id, settings.min_nodes, settings.max_nodes, settings.join_timeout_s)
        self._part = Part(node, self._wanted, self._why)
        self._doorbell = Doorbell(node.node_id)
        self._asking = Asking(node.node_id)
        self._io = IoThread()
        self._view = View()
        self._hub: Hub | None = None
        self._running: list[Future[None]] = []
        self._connecting: asyncio.Task[None] | None = None
        self._trust = Trust(settings.margin_s)
        self._at_end = WaitAtEnd(lambda: self._link.valid_until > boottime())
        self._wishes: dict[str, asyncio.Future[ExclusionAnswer]] = {}
        self._words: dict[str, Callable[[bytes], None]] = {
            "table": self._on_table,
            "failure": self._on_failure,
            "growth": self._on_growth,
            "closed": self._on_closed,
            "excluded": self._on_excluded,
            "decided": self._on_decided,
            "question": self._on_question,
            "answer": lambda payload: self._asking.take(payload),
            "lesson": self._on_lesson,
            "refused": self._on_refused,
        }
        self._trouble = "no answer yet"
        self._address = node.local_addr or ""
        self._peer_port = 0
        self._closing = False

    # --- what the agent asks ------------------------------------------------------------------------------------------

    def start(self, on_event: OnEvent) -> None:
        """Raises :class:`SettingsError` for what can be found wrong without a connection."""
        configuration.check(self._settings)
        self._part.begin(on_event)
        self._loop = asyncio.get_running_loop()
        try:
            self._peer_port = self._doorbell.open()
        except OSError as error:
            raise SettingsError(f"cannot listen on any port: {error.strerror}") from None
        self._io.start()
        self._io.when_ended(lambda: self._post(self._on_crash, "the rendezvous thread has ended"))
        self._link = Link(
            self._settings,
            lambda word, payload: self._post(self._on_frame, word, payload),
            lambda reason: self._post(self._on_trouble, reason),
            self._trust,
        )
        self._asking.open(HubCarrier(self._io, self._link), lambda: self._view)
        self._connecting = self._loop.create_task(self._connect())
        self._connecting.add_done_callback(self._connected)
        self._vigil = Vigil(self._link, self._settings, self._on_silence)
        self._vigil.keep()

    def join(self, joining: Joining) -> None:
        """One line to the hosting node."""
        self._at_end.over()
        if not self._part.ask(joining):
            return
        self._say_record()
        word = self._part.owed_word(self._view)
        if word is not None:
            self._say("failure", word.encode())
        self._loop.call_soon(self._react)

    def announce_failure(self, generation: int, reason: str) -> None:
        """One line to the hosting node, one from there to every other."""
        self._say("failure", self._part.announce(generation, reason).encode())

    def tell_trust(self, listener: Callable[[float], None]) -> None:
        """See the interface."""
        self._trust.listener = listener

    def check_lease(self) -> None:
        """See the interface."""
        self._vigil.look()

    def respond_with(self, respondent: Respondent) -> None:
        """See the interface."""
        self._asking.respond_with(respondent)

    async def ask(self, question: Question, limit_s: float, conclude: Conclude | None = None) -> Answers | None:
        """Two lines to all, and one of each other member to this one."""
        return await self._asking.ask(question, limit_s, conclude)

    def teach(self, lesson: Lesson) -> None:
        """One line to the hosting node, one from there to each spare."""
        record = LessonRecord(tuple(lesson.names), dict(lesson.environment))
        try:
            self._say("lesson", record.encode())
        except RecordError as error:
            log.info("spares cannot be told what to import ahead: %s", error)

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """As the hosting node has told them."""
        return self._view.excluded.entries

    async def exclude(self, wish: ExclusionWish) -> ExclusionAnswer:
        """The hosting node decides, tells all, and ends the generation if the node is in it."""
        attempt = new_attempt()
        waiting = self._wishes[attempt] = self._loop.create_future()
        self._say("exclude", wish_frame(attempt, wish))
        try:
            return await asyncio.wait_for(waiting, ANSWER_S)
        except asyncio.TimeoutError:
            trouble = self._trouble or f"the rendezvous did not answer within {ANSWER_S:g} s"
            raise RendezvousError(trouble) from None
        finally:
            del self._wishes[attempt]

    async def finish(self, generation: int, outcome: Outcome, exit_code: int, reason: str, timeout_s: float) -> int:
        """As the interface says. Leaving the node that hosts the rendezvous takes it away from the others."""
        closed = self._view.closed
        if closed is not None:
            return closed.exit_code if outcome is not Outcome.LEFT else exit_code
        if outcome is Outcome.FINISHED:
            self._part.finish(generation)
            self._loop.call_soon(self._react)
            self._say("finish", FinishRecord(self._node.node_id, generation).encode())
            return await self._at_end.wait(exit_code, timeout_s)
        if outcome is Outcome.FAILED:
            record = ClosedRecord(exit_code, reason, self._node.node_id, self._node.host, new_attempt())
            self._say("closed", record.encode())
            return await self._at_end.wait(exit_code, timeout_s)
        self._closing = True
        farewell = self._part.farewell(self._view, generation, reason)
        if self._hub is not None:
            log.warning("this node hosts the rendezvous at %s: the other nodes lose it", self._settings.target)
        if farewell is not None:
            self._say("failure", farewell.encode())
        await self._bounded(self._link.leave(), min(timeout_s, _LEAVE_S))
        return exit_code

    async def close(self) -> None:
        """Takes a second or two; on the hosting node up to seven, for others that have not left yet."""
        self._closing = True
        self._part.end()
        self._vigil.stop()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        await self._asking.close()
        await self._bounded(self._link.leave(), _CLOSE_S)
        for work in self._running[:1]:
            work.cancel()
        if self._hub is not None:
            drain_s = _DRAIN_S if self._view.closed is not None else 0.0
            await self._bounded(self._hub.close(drain_s), drain_s + _CLOSE_S)
        for work in self._running:
            work.cancel()
        self._doorbell.close()
        await self._io.stop(_CLOSE_S)

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        settings, node = self._settings, self._node
        hosts, self._address = await whereabouts(self._io, settings, self._address, self._on_trouble)
        hello = Hello(
            settings.job_id,
            node.node_id,
            node.host,
            node.pid,
            self._address,
            self._peer_port,
            node.machine,
            self._wanted.settings_of(node),
        )
        if hosts:
            self._host(hello)
        # The host reaches itself even where its name or service leads elsewhere yet.
        where = "localhost" if self._hub is not None else settings.host
        self._running.insert(0, self._io.submit(self._link.run(hello, where)))
        self._say_record()

    def _host(self, hello: Hello) -> None:
        try:
            listening = listen_at(self._settings.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and self._settings.is_host is None:
                return  # another agent of this machine was first
            self._part.fail(f"this node should host the rendezvous at port {self._settings.port}: {error.strerror}")
            return
        self._hub = Hub(self._settings, hello, self._publish)
        self._running.append(self._io.submit(self._hub.serve(listening)))

    def _connected(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("connecting to the rendezvous ended unexpectedly", exc_info=task.exception())
            self._on_crash(repr(task.exception()))

    def _say_record(self, now: bool = True) -> None:
        record = self._part.record(self._address, self._peer_port)
        if record is None or not self._address:
            return
        say = self._link.say if now else self._link.remember
        try:
            self._io.submit(say("node", record.encode()))
        except RecordError as error:
            self._part.fail_soon(f"what this node offers cannot be sent: {error}")

    def _say(self, word: str, payload: bytes) -> None:
        self._io.submit(self._link.say(word, payload))

    async def _bounded(self, work: Any, limit_s: float) -> None:
        try:
            await asyncio.wait_for(self._io.run(work), limit_s)
        except (asyncio.TimeoutError, RuntimeError):
            log.debug("left to the process's end")

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("the agent's loop is closed")

    # --- what comes from the meeting point ----------------------------------------------------------------------------

    def _on_frame(self, word: str, payload: bytes) -> None:
        self._trouble = ""
        hear = self._words.get(word)
        try:
            if hear is not None:
                hear(payload)
        except RecordError as error:
            log.warning("rendezvous: %r makes no sense: %s", word, str(error))
        self._react()

    def _on_table(self, payload: bytes) -> None:
        table = TableRecord.decode(payload)
        failures = {n: f for n, f in self._view.failures.items() if n >= table.generation - 1}
        self._view = replace(self._view, table=table, failures=failures, growth=None)
        # What belongs to a generation that is over need not be told again.
        for outdated in ("failure", "finish", "lesson"):
            self._io.submit(self._link.remember(outdated, None))
        self._io.submit(self._link.remember("table", payload))

    def _on_failure(self, payload: bytes) -> None:
        failure = FailureRecord.decode(payload)
        self._view = replace(self._view, failures={**self._view.failures, failure.generation: failure})

    def _on_growth(self, payload: bytes) -> None:
        self._view = replace(self._view, growth=GrowthRecord.decode(payload))

    def _on_closed(self, payload: bytes) -> None:
        self._view = replace(self._view, closed=ClosedRecord.decode(payload))

    def _on_excluded(self, payload: bytes) -> None:
        self._view = replace(self._view, excluded=ExclusionsRecord.decode(payload))
        self._io.submit(self._link.remember("excluded", payload))

    def _on_decided(self, payload: bytes) -> None:
        attempt, answer = read_answer(payload)
        waiting = self._wishes.get(attempt)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, RendezvousError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def _on_question(self, payload: bytes) -> None:
        self._asking.see([QuestionRecord.decode(payload)])

    def _on_lesson(self, payload: bytes) -> None:
        record = LessonRecord.decode(payload)
        self._part.tell(Lesson(record.names, record.environment))

    def _on_refused(self, payload: bytes) -> None:
        self._part.end_here(ClosedRecord.decode(payload).reason)

    def _react(self) -> None:
        if self._closing:
            return
        for event in self._part.hear(self._view):
            if isinstance(event, Closed):
                self._trust.release()
                self._at_end.over(event.exit_code)
            elif isinstance(event, WorldAgreed):
                # After a new connection, what was asked for then must not be taken for a new wish.
                self._say_record(now=False)

    def _on_trouble(self, reason: str) -> None:
        if not self._closing and reason != self._trouble:
            log.warning("rendezvous: %s", reason)
            self._trouble = reason

    def _on_crash(self, reason: str) -> None:
        if not self._closing:
            self._part.crash(reason)

    def _why(self) -> str:
        return self._trouble or (self._hub.reason if self._hub is not None else "")

    # --- ending and fencing -------------------------------------------------------------------------------------------

    def _on_silence(self, why: str) -> None:
        if not self._part.counts_on_us:
            return
        since = self._settings.node_timeout_s - self._settings.margin_s
        reason = why or f"no sign of life was answered for {since:g} s: {self._trouble or 'no answer'}"
        if not self._at_end.waiting:
            self._part.fence(reason)
        elif self._link.refused:
            # Our ranks have succeeded; who should tell us that the others' have too is gone. After a cut it may
            # need us once more, as it could not hear that we had finished.
            log.warning("cannot wait for the other nodes: %s", reason)
            self._at_end.over()
