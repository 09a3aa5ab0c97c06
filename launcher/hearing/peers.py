"""The agents of the other nodes of this generation: what they ask of us, what we ask of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ftlaunch.rendezvous.interface import Question

if TYPE_CHECKING:
    from ftlaunch.rendezvous.interface import Answers, Conclude, Rendezvous

Answer = Callable[[Question], Awaitable[Mapping[str, Any] | None]]
"""``None``: nothing to say about it."""
Learn = Callable[[int, Mapping[str, Any]], None]
"""Given the generation and what came of a question that somebody asked."""


class Peers:
    """Brings each question to who can answer it; implements :class:`ftlaunch.rendezvous.interface.Respondent`."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._answers: dict[str, Answer] = {}
        self._learners: dict[str, Learn] = {}
        rendezvous.respond_with(self)

    def serve(self, topic: str, answer: Answer, learn: Learn | None = None) -> None:
        """Who answers, and who hears outcomes."""
        self._answers[topic] = answer
        if learn is not None:
            self._learners[topic] = learn

    async def ask(self, question: Question, limit_s: float, conclude: Conclude | None = None) -> Answers | None:
        """See :meth:`ftlaunch.rendezvous.interface.Rendezvous.ask`."""
        return await self._rendezvous.ask(question, limit_s, conclude)

    async def answer(self, question: Question) -> Mapping[str, Any] | None:
        """From another node."""
        answer = self._answers.get(question.topic)
        return await answer(question) if answer is not None else None

    def learn(self, question: Question, outcome: Mapping[str, Any]) -> None:
        """From another node, or of a question of our own."""
        learn = self._learners.get(question.topic)
        if learn is not None:
            learn(question.generation, outcome)
