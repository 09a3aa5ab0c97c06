"""An agent's connection to the meeting point, made anew whenever it breaks; runs on the thread of its own.

The thread is there for the same reason as with etcd: the node must give signs of life even while the agent's loop is
held up.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import Callable

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.trust import Trust
from ftlaunch.rendezvous.hub.frames import LINE_LIMIT, Hello, frame, read_frame
from ftlaunch.rendezvous.hub.settings import HubSettings

_CONNECT_S = 2.0
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_ORDER = ("table", "excluded", "node", "failure", "finish", "closed", "lesson")


class Link:
    """``tell(word, payload)`` is called for each frame; ``trouble(reason)`` when there is no connection."""

    def __init__(
        self,
        settings: HubSettings,
        tell: Callable[[str, bytes], None],
        trouble: Callable[[str], None],
        trust: Trust,
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._trouble = trouble
        self._trust = trust
        self._standing: dict[str, bytes] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._sent: dict[int, float] = {}
        self._over = False
        self.valid_until = float("-inf")
        """Until when the hub counts on this node at least, on CLOCK_BOOTTIME; may be read from any thread."""
        self.refused = False
        """Whether nobody listens there any more, by the word of the host itself; may be read from any thread."""

    async def say(self, word: str, payload: bytes) -> None:
        """Say it now, and again after each new connection: the hub knows what it has heard before."""
        self._standing[word] = payload
        if self._writer is not None:
            self._writer.write(frame(word, payload))

    async def mention(self, word: str, payload: bytes) -> bool:
        """Say it once, if there is a connection; whether there is."""
        if self._writer is None:
            return False
        self._writer.write(frame(word, payload))
        return True

    async def remember(self, word: str, payload: bytes | None) -> None:
        """Say it (or not any more) only after a new connection."""
        if payload is None:
            self._standing.pop(word, None)
        else:
            self._standing[word] = payload

    async def leave(self) -> None:
        """Say good-bye; returns when it is on its way. Nothing is said after it."""
        self._over = True
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(frame("bye"))
                await self._writer.drain()

    async def run(self, hello: Hello, host: str) -> None:
        """Stay connected, until cancelled or :meth:`leave`."""
        failed, target = 0, self._settings.target
        while not self._over:
            try:
                connecting = asyncio.open_connection(host, self._settings.port, limit=LINE_LIMIT)
                reader, writer = await asyncio.wait_for(connecting, _CONNECT_S)
            except (OSError, asyncio.TimeoutError) as error:
                # Of several addresses, asyncio keeps only the text.
                self.refused = f"[Errno {errno.ECONNREFUSED}]" in str(error)
                self._trouble(f"the rendezvous at {target} cannot be reached: {_reason(error)}")
            else:
                self.refused = False
                heard = await self._session(hello, reader, writer)
                failed = 0 if heard else failed
                self._trouble(f"the connection to the rendezvous at {target} ended")
            await asyncio.sleep(_PAUSES_S[min(failed, len(_PAUSES_S) - 1)] * random.uniform(0.5, 1.0))
            failed += 1

    async def _session(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One connection; whether anything was heard through it."""
        self._writer, heard = writer, False
        pinging = asyncio.ensure_future(self._ping(writer))
        try:
            writer.write(frame("hello", hello.encode()))
            for word in _ORDER:
                if word in self._standing:
                    writer.write(frame(word, self._standing[word]))
            while True:
                got = await read_frame(reader)
                if got is None:
                    return heard
                heard = True
                if got[0] == "pong":
                    self._answered(got[1])
                else:
                    self._tell(*got)
        finally:
            pinging.cancel()
            self._writer = None
            writer.close()

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        """Give signs of life; end a connection on which none comes back."""
        self._sent.clear()
        number = 0
        while len(self._sent) < 3:
            number += 1
            self._sent[number] = boottime()
            writer.write(frame("ping", str(number).encode()))
            await asyncio.sleep(self._settings.node_timeout_s / 4)
        writer.transport.abort()

    def _answered(self, payload: bytes) -> None:
        sent = self._sent.pop(int(payload), None) if payload.isdigit() and len(payload) < 20 else None
        if sent is not None:
            self.valid_until = max(self.valid_until, sent + self._settings.node_timeout_s)
            self._trust.reach(self.valid_until)


def _reason(error: BaseException) -> str:
    # asyncio puts several failed addresses into one OSError without a number.
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else str(error) or "no answer"
