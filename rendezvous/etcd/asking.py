"""Questions among the members, carried by etcd; see :mod:`~ftlaunch.rendezvous.common.asking`.

Everything hangs on the lease of who asks, and an answer is written only while its question stands: nothing is left
behind, whoever dies. Answers lie where only who asked looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ftlaunch.rendezvous.common.asking import QuestionRecord, told
from ftlaunch.rendezvous.common.records import RecordError
from ftlaunch.rendezvous.etcd.errors import EtcdError
from ftlaunch.rendezvous.etcd.membership import Membership
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.site import Site, log
from ftlaunch.rendezvous.etcd.watch import Broken, Snapshot, Update, follow_ranges
from ftlaunch.rendezvous.etcd.wire import (
    Absent,
    Answer,
    Condition,
    Delete,
    Get,
    KeyValue,
    Put,
    Transaction,
    ValueIs,
    existing,
)

_REPLY_S = 2.0
_TRIES = 3


class EtcdCarrier:
    """``take`` gets the answers to our own questions."""

    def __init__(self, site: Site, membership: Membership, mirror: Mirror, take: Callable[[bytes], None]) -> None:
        self._site = site
        self._membership = membership
        self._mirror = mirror
        self._take = take
        self._streams: dict[str, Future[None]] = {}

    async def pose(self, question: QuestionRecord, limit_s: float) -> QuestionRecord | None:
        """Compare-and-swap: of two that ask at the same moment only one comes through."""
        lease, keys = self._membership.lease, self._site.keys
        if lease is None:
            return None
        question = replace(question, lease=lease.lease_id)
        answers = follow_ranges(
            self._site.client, (keys.answers(question.attempt),), self._tell, self._site.settings.node_timeout_s
        )
        try:
            self._streams[question.attempt] = self._site.io.submit(answers)
        except RuntimeError:
            return None
        open_now = await self._swap(question, limit_s)
        if open_now is not question:
            self._forget(question)
        return open_now

    async def _swap(self, question: QuestionRecord, limit_s: float) -> QuestionRecord | None:
        """Put it in the place of one that is over; returns the one that is open then."""
        key, value = self._site.keys.ask(question.name), question.encode()
        standing = self._mirror.get(key)
        for _ in range(_TRIES):
            condition: Condition = Absent(key) if standing is None else ValueIs(key, standing.value)
            answer = await self._try(
                Transaction((condition,), (Put(key, value, question.lease),), (Get(key),)), limit_s
            )
            if answer is None:
                return None
            standing = existing(answer)
            # Applied, perhaps at a try whose answer was lost.
            if answer.applied or (standing is not None and standing.value == value):
                return question
            other = _read(standing)
            open_now = other is not None and other.outcome is None and other.generation == question.generation
            if open_now and other is not None and other.node_id != question.node_id:
                return other
            # What the watch had told was outdated: this one is over.
        return None

    async def reply(self, question: QuestionRecord, answer: bytes) -> None:
        """Not written when the question is over by then."""
        keys = self._site.keys
        # Not what the watch has told: it may be behind the write by which we learnt of the question.
        condition = ValueIs(keys.ask(question.name), question.encode())
        put = Put(keys.answer(question.attempt, self._site.node.node_id), answer, question.lease)
        await self._try(Transaction((condition,), (put,)), _REPLY_S)

    async def settle(self, question: QuestionRecord, outcome: Mapping[str, Any]) -> None:
        """One write, which takes the answers away, too."""
        self._forget(question)
        keys = self._site.keys
        key = keys.ask(question.name)
        then = (Put(key, told(question, outcome)[1], question.lease), Delete(keys.answers(question.attempt)))
        await self._try(Transaction((ValueIs(key, question.encode()),), then), _REPLY_S)

    def close(self) -> None:
        """Listen to no answers any more."""
        for stream in self._streams.values():
            stream.cancel()
        self._streams.clear()

    async def _try(self, transaction: Transaction, limit_s: float) -> Answer | None:
        try:
            asking = self._site.ask(lambda: self._site.client.transact(transaction), limit_s)
            return await asyncio.wait_for(asking, limit_s)
        except (EtcdError, asyncio.TimeoutError, RuntimeError) as error:
            log.debug("a question or an answer was not written: %s", str(error))
            return None

    def _forget(self, question: QuestionRecord) -> None:
        stream = self._streams.pop(question.attempt, None)
        if stream is not None:
            stream.cancel()

    def _tell(self, update: Update) -> None:
        if isinstance(update, Broken):
            return
        if isinstance(update, Snapshot):
            values = [kv.value for kv in update.values]
        else:
            values = [change.value.value for change in update if change.value is not None]
        for value in values:
            self._site.post(self._take, value)


def _read(kv: KeyValue | None) -> QuestionRecord | None:
    try:
        return QuestionRecord.decode(kv.value) if kv is not None else None
    except RecordError:
        return None
