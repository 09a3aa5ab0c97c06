"""Questions among members without a backend: who is asked, who answers, who waits for whom. The carrier is played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.rendezvous.common.asking import AnswerRecord, Asking, QuestionRecord, told
from ftlaunch.rendezvous.common.decide import View
from ftlaunch.rendezvous.common.records import FailureKind, FailureRecord, RecordError, Seat, TableRecord
from ftlaunch.rendezvous.etcd.asking import EtcdCarrier
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.wire import Answer, Put, Transaction, ValueIs
from ftlaunch.rendezvous.interface import Answers, Question

NAMES = ("a", "b", "c")
TABLE = TableRecord(3, "attempt", tuple(Seat(name, f"host-{name}", name, 2, 1) for name in NAMES), "a", 1, 0)
RANKS = Question(3, "ranks")
OPEN = QuestionRecord("ranks", "ranks", 3, "b", "attempt-of-b")


class Carrier:
    """Remembers what it should carry. ``before``: the question that is open already."""

    def __init__(self, before: QuestionRecord | None = None) -> None:
        self.before = before
        self.posed: list[QuestionRecord] = []
        self.replies: list[AnswerRecord] = []
        self.outcomes: list[Mapping[str, Any]] = []

    async def pose(self, question: QuestionRecord, limit_s: float) -> QuestionRecord | None:
        self.posed.append(question)
        return self.before or question

    async def reply(self, question: QuestionRecord, answer: bytes) -> None:
        self.replies.append(AnswerRecord.decode(answer))

    async def settle(self, question: QuestionRecord, outcome: Mapping[str, Any]) -> None:
        self.outcomes.append(outcome)


class Voice:
    """Speaks for a node."""

    def __init__(self) -> None:
        self.learnt: list[Mapping[str, Any]] = []

    async def answer(self, question: Question) -> Mapping[str, Any]:
        return {"about": question.generation}

    def learn(self, question: Question, outcome: Mapping[str, Any]) -> None:
        self.learnt.append(outcome)


class Node:
    """Node ``a``, in generation 3."""

    def __init__(self, carrier: Carrier, view: View | None = None) -> None:
        self.view = view if view is not None else View(table=TABLE)
        self.voice = Voice()
        self.carrier = carrier
        self.asking = Asking("a")
        self.asking.open(carrier, lambda: self.view)
        self.asking.respond_with(self.voice)

    async def until_posed(self) -> str:
        while not self.carrier.posed:
            await asyncio.sleep(0)
        return self.carrier.posed[-1].attempt


def conclude(answers: Answers) -> Mapping[str, Any]:
    return {"said": sorted(answers.said), "refused": answers.refused}


def test_only_the_first_answer_of_each_other_member_counts() -> None:
    async def scenario() -> None:
        node = Node(Carrier())
        asking = asyncio.ensure_future(node.asking.ask(RANKS, 5.0, conclude))
        attempt = await node.until_posed()
        for name, said in (("b", 1), ("b", 2), ("x", 3), ("a", 4)):
            node.asking.take(AnswerRecord(attempt, name, {"n": said}).encode())
        node.asking.take(AnswerRecord("another", "c", {"n": 5}).encode())
        node.asking.take(b"[" * 100_000)
        node.asking.take(b'{"v":1,"attempt":"x","node_id":"c","said":{"n":NaN}}')
        await asyncio.sleep(0)
        assert not asking.done()
        node.asking.take(AnswerRecord(attempt, "c", {"n": 6}).encode())
        answers = await asking
        assert answers == Answers({"b": {"n": 1}, "c": {"n": 6}}, (), 2)
        assert node.carrier.outcomes == node.voice.learnt == [{"said": ["b", "c"], "refused": 2}]

    asyncio.run(scenario())


@pytest.mark.parametrize("known", ["by the watch", "by the write"])
def test_who_comes_second_waits_for_the_outcome_of_the_first(known: str) -> None:
    async def scenario() -> None:
        node = Node(Carrier(before=OPEN))
        if known == "by the watch":
            node.asking.see([OPEN])
        asking = asyncio.ensure_future(node.asking.ask(RANKS, 5.0, conclude))
        while not node.carrier.replies:
            await asyncio.sleep(0)
        assert len(node.carrier.posed) == (known == "by the write")
        assert node.carrier.replies == [AnswerRecord(OPEN.attempt, "a", {"about": 3})]
        assert not asking.done()
        for _ in range(2):
            node.asking.see([told(OPEN, {"x": 1})[0]])
        assert await asking is None
        assert node.voice.learnt == [{"x": 1}]

    asyncio.run(scenario())


def test_a_hub_that_tells_late_who_was_first() -> None:
    async def scenario() -> None:
        node = Node(Carrier())
        asking = asyncio.ensure_future(node.asking.ask(RANKS, 5.0, conclude))
        await node.until_posed()
        node.asking.see([OPEN])
        node.asking.see([replace(OPEN, outcome={"x": 1})])
        assert await asking is None
        assert node.voice.learnt == [{"x": 1}]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "question",
    [
        replace(OPEN, generation=2),
        replace(OPEN, node_id="stranger"),
        replace(OPEN, node_id="a"),
        replace(OPEN, outcome={"x": 1}),
    ],
)
def test_what_is_of_another_time_or_of_nobody_we_know_is_neither_answered_nor_learnt(question: QuestionRecord) -> None:
    async def scenario() -> None:
        node = Node(Carrier())
        node.asking.see([question])
        node.asking.see([replace(question, outcome={"x": 1})])
        await asyncio.sleep(0)
        assert not node.carrier.replies and not node.voice.learnt

    asyncio.run(scenario())


def test_nobody_is_asked_about_a_generation_that_is_not_the_present_one() -> None:
    failed = FailureRecord(3, FailureKind.FAILED, "b", "host-b", "died", "x")

    async def scenario() -> None:
        for view in (
            View(),
            View(table=TABLE, failures={3: failed}),
            View(table=replace(TABLE, seats=TABLE.seats[1:])),
        ):
            node = Node(Carrier(), view)
            assert await node.asking.ask(RANKS, 5.0, conclude) is None
            assert not node.carrier.posed
        assert await Node(Carrier()).asking.ask(Question(4, "ranks"), 5.0) is None
        assert await Asking("a").ask(RANKS, 5.0) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("lease", [-1, 1 << 63, 1.0, True, None])
def test_a_lease_that_etcd_does_not_know_is_refused(lease: object) -> None:
    with pytest.raises(RecordError):
        QuestionRecord.decode(json.dumps({**json.loads(OPEN.encode()), "lease": lease}).encode())


def test_an_outcome_that_is_too_large_is_an_empty_one() -> None:
    record, value = told(OPEN, {"x": "y" * 100_000})
    assert record.outcome == {} and QuestionRecord.decode(value) == record


def test_an_answer_is_written_although_the_watch_is_behind_the_write_that_told_of_the_question() -> None:
    written: list[Transaction] = []

    async def transact(transaction: Transaction) -> Answer:
        written.append(transaction)
        return Answer(True, 1)

    async def ask(attempt: Callable[[], Awaitable[Answer]], limit_s: float) -> Answer:
        return await attempt()

    keys = Keys.of_job("job")
    site = SimpleNamespace(
        keys=keys, node=SimpleNamespace(node_id="a"), client=SimpleNamespace(transact=transact), ask=ask
    )
    carrier = EtcdCarrier(cast(Any, site), cast(Any, None), Mirror(keys), lambda value: None)
    asyncio.run(carrier.reply(replace(OPEN, lease=7), b"answer"))
    (transaction,) = written
    # Byte for byte what who asked has written.
    assert transaction.conditions == (ValueIs(keys.ask("ranks"), replace(OPEN, lease=7).encode()),)
    assert QuestionRecord.decode(OPEN.encode()).encode() == OPEN.encode()
    assert transaction.then == (Put(keys.answer(OPEN.attempt, "a"), b"answer", 7),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RECORDS: list[tuple[Any, dict[str, Any]]] = [
    (QuestionRecord, json.loads(replace(OPEN, outcome={"x": 1}).encode())),
    (AnswerRecord, json.loads(AnswerRecord("x", "b", {"n": 1}).encode())),
]


@pytest.mark.parametrize(("kind", "raw"), RECORDS)
@given(data=st.data())
def test_whatever_is_read_can_be_written_again(kind: Any, raw: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(raw)))
    value = json.dumps({**raw, name: data.draw(JSON)}).encode()
    try:
        record = kind.decode(value)
    except RecordError:
        return
    assert kind.decode(record.encode()) == record
    record.node_id.encode()
