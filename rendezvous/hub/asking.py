"""Questions among the members, carried by the meeting point; see :mod:`~ftlaunch.rendezvous.common.asking`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ftlaunch.rendezvous.common.asking import QuestionRecord, told
from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.hub.link import Link

_SAY_S = 1.0


class HubCarrier:
    """Says everything once; after a lost connection nobody waits for it any more."""

    def __init__(self, io: IoThread, link: Link) -> None:
        self._io = io
        self._link = link

    async def pose(self, question: QuestionRecord, limit_s: float) -> QuestionRecord | None:
        """If another one of this name is open, the hub says so, as a question that comes in."""
        return question if await self._mention("question", question.encode()) else None

    async def reply(self, question: QuestionRecord, answer: bytes) -> None:
        """The hub knows who asked."""
        await self._mention("answer", answer)

    async def settle(self, question: QuestionRecord, outcome: Mapping[str, Any]) -> None:
        """One line."""
        await self._mention("question", told(question, outcome)[1])

    async def _mention(self, word: str, payload: bytes) -> bool:
        try:
            return await asyncio.wait_for(self._io.run(self._link.mention(word, payload)), _SAY_S)
        except (asyncio.TimeoutError, RuntimeError):
            return False
