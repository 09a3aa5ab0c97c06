"""The nodes of a job as they describe themselves to each other, for ``ftctl status``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher import clock
from ftlaunch.rendezvous.interface import Question

if TYPE_CHECKING:
    from ftlaunch.launcher.hearing.peers import Peers

TOPIC = "status"
LIMIT_S = 2.0
LIMIT_PER_NODE_S = 0.003
_AGE_PER_NODE_S = 0.01
"""Answers are shown again for so long: a thousand nodes are asked every ten seconds at most, however many watch."""


class Cluster:
    """``describe`` tells of this node."""

    def __init__(self, peers: Peers, describe: Callable[[], Mapping[str, Any]]) -> None:
        self._peers = peers
        self._describe = describe
        self._asking = asyncio.Lock()
        self._known: tuple[int, float, list[dict[str, Any]]] = (-1, 0.0, [])
        peers.serve(TOPIC, self._answer)

    async def others(self, generation: int, nodes: int) -> Sequence[Mapping[str, Any]]:
        """What the other members of this generation say; takes two seconds at most, with a thousand nodes five.

        ``nodes``: how many members there are. Who said nothing that makes sense is left out.
        """
        async with self._asking:
            known_of, asked_at, found = self._known
            if known_of == generation and clock.monotonic() - asked_at < nodes * _AGE_PER_NODE_S:
                return found
            asked_at = clock.monotonic()
            answers = await self._peers.ask(Question(generation, TOPIC), LIMIT_S + nodes * LIMIT_PER_NODE_S)
            from ftlaunch.launcher.views import told

            said = answers.said.values() if answers is not None else ()
            found = [node for node in map(told.node, said) if node is not None]
            self._known = (generation, asked_at, found)
            return found

    async def _answer(self, question: Question) -> Mapping[str, Any]:
        return self._describe()
