"""Questions among the members, at the meeting point: it passes on what is asked and answered, and keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch.rendezvous.common.asking import STALE_S, AnswerRecord, QuestionRecord
from ftlaunch.rendezvous.common.records import RecordError
from ftlaunch.rendezvous.hub.frames import frame
from ftlaunch.rendezvous.hub.jobstate import Guest

_MAX_OPEN = 4096


@dataclass(frozen=True)
class _Open:
    record: QuestionRecord
    line: bytes
    at: float


class Questions:
    """``say(line)`` brings a line to all agents, ``say_to(node_id, line)`` to one, if it is there."""

    def __init__(self, say: Callable[[bytes], None], say_to: Callable[[str, bytes], None]) -> None:
        self._say = say
        self._say_to = say_to
        self._open: dict[str, _Open] = {}

    def on_question(self, guest: Guest, payload: bytes) -> None:
        """A question, or its outcome. Raises :class:`RecordError`, as :meth:`on_answer`."""
        record, line = QuestionRecord.decode(payload), frame("question", payload)
        if record.node_id != guest.hello.node_id:
            raise RecordError("asked in the name of another node")
        now = asyncio.get_running_loop().time()
        self._open = {name: asked for name, asked in self._open.items() if now - asked.at < STALE_S}
        known = self._open.get(record.name)
        if record.outcome is not None:
            if known is not None and known.record.attempt == record.attempt:
                del self._open[record.name]
                self._say(line)
        elif known is not None and known.record.node_id != record.node_id:
            # Who asks second learns that somebody was first.
            self._say_to(record.node_id, known.line)
        elif len(self._open) < _MAX_OPEN:
            self._open[record.name] = _Open(record, line, now)
            self._say(line)

    def on_answer(self, guest: Guest, payload: bytes) -> None:
        """Only who asked gets to see it."""
        answer = AnswerRecord.decode(payload)
        if answer.node_id != guest.hello.node_id:
            raise RecordError("answered in the name of another node")
        for asked in self._open.values():
            if asked.record.attempt == answer.attempt:
                self._say_to(asked.record.node_id, frame("answer", payload))
