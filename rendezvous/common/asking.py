"""Questions among the members of a generation: one asks, all others answer, and perhaps all are told what came of it.

The same for every backend of several nodes: a backend carries (:class:`Carrier`), this decides what to answer and when
to wait no longer. A healthy job asks nothing. A question costs one word to every member, one answer of each, which only
who asked gets to see, and one last word to every member: linear in the number of nodes. All on the agent's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from ftlaunch.rendezvous.common.decide import View
from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import Number, Record, RecordError
from ftlaunch.rendezvous.interface import Answers, Conclude, Question, Respondent

log = logging.getLogger("ftlaunch.rendezvous")

MAX_ANSWER_BYTES = 256_000
MAX_OUTCOME_BYTES = 32_000
_MAX_NAMES = 4096
STALE_S = 10.0
"""Nobody waits that long for answers: a question this old was given up, and its outcome tells of another time."""
_LAST_WORD_S = 1.0


@dataclass(frozen=True)
class QuestionRecord(Record):
    """One question and, in the end, its outcome. ``name``: of those open at a time there is only one of each name.

    ``lease``: what answers may hang on, for a backend that has such a thing.
    """

    LIMIT: ClassVar[int] = MAX_OUTCOME_BYTES

    name: str
    topic: str
    generation: Number
    node_id: str
    attempt: str
    detail: str = ""
    lease: Number = 0
    outcome: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AnswerRecord(Record):
    """What one node says to the question of that attempt."""

    LIMIT: ClassVar[int] = MAX_ANSWER_BYTES

    attempt: str
    node_id: str
    said: Mapping[str, Any]


class Carrier(Protocol):
    """What a backend does. Nothing is raised: what cannot be said now is not said."""

    async def pose(self, question: QuestionRecord, limit_s: float) -> QuestionRecord | None:
        """Put the question to all; returns what is open then under its name, perhaps one that was there first.

        ``None``: there is no connection, within ``limit_s``.
        """

    async def reply(self, question: QuestionRecord, answer: bytes) -> None:
        """Bring an answer to who asked."""

    async def settle(self, question: QuestionRecord, outcome: Mapping[str, Any]) -> None:
        """Tell all the outcome and forget the answers; within a few seconds."""


class _Poll:
    """A question of our own."""

    def __init__(self, question: QuestionRecord, expected: frozenset[str]) -> None:
        self.question = question
        self.expected = expected
        self.said: dict[str, Mapping[str, Any]] = {}
        self.refused = 0
        self.over = asyncio.Event()
        self.yields = False
        """Another member was first."""
        if not expected:
            self.over.set()

    def answers(self) -> Answers:
        return Answers(self.said, tuple(sorted(self.expected - self.said.keys())), self.refused)


@dataclass
class _Seen:
    """A question of another member."""

    record: QuestionRecord
    at: float
    settled: asyncio.Event


class Asking:
    """One node's part in all questions, its own and those of others."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._carrier: Carrier | None = None
        self._view: Callable[[], View] = View
        self._respondent: Respondent | None = None
        self._polls: dict[str, _Poll] = {}
        self._seen: dict[str, _Seen] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def respond_with(self, respondent: Respondent) -> None:
        """Who speaks for this node."""
        self._respondent = respondent

    def open(self, carrier: Carrier, view: Callable[[], View]) -> None:
        """The way to the others, and who they are."""
        self._carrier, self._view = carrier, view

    async def close(self) -> None:
        """Answer nothing any more."""
        tasks, self._tasks, self._respondent = self._tasks, set(), None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def ask(self, question: Question, limit_s: float, conclude: Conclude | None = None) -> Answers | None:
        """See :meth:`ftlaunch.rendezvous.interface.Rendezvous.ask`."""
        members, carrier = self._members(question.generation), self._carrier
        if self._node_id not in members or carrier is None:
            return None
        others = members - {self._node_id}
        name = question.topic if conclude is not None else f"{question.topic}-{self._node_id}"
        asked = (question.topic, question.generation, self._node_id, new_attempt(), question.detail)
        record = QuestionRecord(name, *asked)
        if conclude is not None and self._open(name) is not None:
            await self._await_outcome(name, limit_s)
            return None
        poll = self._polls[record.attempt] = _Poll(record, others)
        try:
            posed = await self._collect(carrier, poll, limit_s)
        finally:
            del self._polls[record.attempt]
        if not posed:
            await self._await_outcome(name, limit_s)
            return None
        answers = poll.answers()
        if answers.refused:
            log.warning("rendezvous: %d answers of other nodes made no sense", answers.refused)
        outcome = conclude(answers) if conclude is not None else {}
        if conclude is not None and self._respondent is not None:
            self._respondent.learn(question, outcome)
        await carrier.settle(poll.question, outcome)
        return answers

    async def _collect(self, carrier: Carrier, poll: _Poll, limit_s: float) -> bool:
        """Whether the question could be put to the others, whatever they said."""
        deadline = _now() + limit_s
        posed = await carrier.pose(poll.question, limit_s)
        if posed is None or posed.attempt != poll.question.attempt:
            self.see([posed] if posed is not None else ())
            return False
        poll.question = posed
        try:
            await asyncio.wait_for(poll.over.wait(), max(0.0, deadline - _now()))
        except asyncio.TimeoutError:
            log.debug("not all nodes have answered")
        except asyncio.CancelledError:
            self._start(carrier.settle(posed, {}))
            raise
        return not poll.yields

    def _members(self, generation: int) -> frozenset[str]:
        """Of the present generation, if this is it and it lives."""
        view = self._view()
        if view.table is None or view.table.generation != generation or view.failure is not None:
            return frozenset()
        return frozenset(seat.node_id for seat in view.table.seats)

    def _open(self, name: str) -> _Seen | None:
        """A question of another member that waits for its outcome."""
        seen = self._seen.get(name)
        if seen is None or seen.settled.is_set() or _now() - seen.at > STALE_S:
            return None
        return seen if self._members(seen.record.generation) else None

    async def _await_outcome(self, name: str, limit_s: float) -> None:
        seen = self._open(name)
        if seen is not None:
            try:
                await asyncio.wait_for(seen.settled.wait(), limit_s + _LAST_WORD_S)
            except asyncio.TimeoutError:
                log.debug("nobody told what came of the question of %s", seen.record.node_id)

    # --- what comes in ----------------------------------------------------------------------------------------------

    def see(self, questions: Iterable[QuestionRecord]) -> None:
        """Questions as they stand; each may come again and again."""
        for question in questions:
            if question.node_id == self._node_id:
                continue
            seen = self._seen.get(question.name)
            if question.outcome is not None:
                if seen is not None and seen.record.attempt == question.attempt:
                    self._settled(seen, question.outcome)
            elif seen is None or seen.record.attempt != question.attempt:
                self._asked(question)

    def _asked(self, question: QuestionRecord) -> None:
        for poll in self._polls.values():
            if poll.question.name == question.name:
                poll.yields = True
                poll.over.set()
        if len(self._seen) >= _MAX_NAMES and question.name not in self._seen:
            return
        self._seen[question.name] = _Seen(question, _now(), asyncio.Event())
        members = self._members(question.generation)
        if self._respondent is not None and self._carrier is not None and {self._node_id, question.node_id} <= members:
            self._start(self._answer(self._carrier, self._respondent, question))

    async def _answer(self, carrier: Carrier, respondent: Respondent, question: QuestionRecord) -> None:
        said = await respondent.answer(Question(question.generation, question.topic, question.detail))
        if said is None:
            return
        try:
            value = AnswerRecord(question.attempt, self._node_id, said).encode()
        except RecordError as error:
            log.warning("what this node answers cannot be sent: %s", str(error))
            return
        await carrier.reply(question, value)

    def _settled(self, seen: _Seen, outcome: Mapping[str, Any]) -> None:
        if seen.settled.is_set():
            return
        seen.settled.set()
        record = seen.record
        fresh = _now() - seen.at <= STALE_S and record.node_id in self._members(record.generation)
        if fresh and outcome and self._respondent is not None:
            self._respondent.learn(Question(record.generation, record.topic), outcome)

    def take(self, value: bytes) -> None:
        """An answer to a question of ours. One that makes no sense is counted and dropped."""
        try:
            answer = AnswerRecord.decode(value)
        except RecordError:
            for poll in self._polls.values():
                poll.refused += 1
            return
        asked = self._polls.get(answer.attempt)
        if asked is None or answer.node_id not in asked.expected or answer.node_id in asked.said:
            return
        asked.said[answer.node_id] = answer.said
        if len(asked.said) == len(asked.expected):
            asked.over.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a question among the nodes went wrong", exc_info=task.exception())


def told(question: QuestionRecord, outcome: Mapping[str, Any]) -> tuple[QuestionRecord, bytes]:
    """The question with its outcome, as both record and bytes; an outcome that cannot be told is an empty one."""
    record = replace(question, outcome=outcome)
    try:
        return record, record.encode()
    except RecordError as error:
        log.warning("the outcome of a question cannot be told: %s", str(error))
        record = replace(question, outcome={})
        return record, record.encode()


def _now() -> float:
    return asyncio.get_running_loop().time()
