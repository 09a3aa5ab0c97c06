"""Answers to GET in the agent's own event loop: for metrics and health, and no more than these need.

One request per connection, bounded in size, time and number. An answer is made by a plain function, at once, so it must
be quick: nothing else happens in the agent meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftlaunch.launcher.errors import FtlaunchError

_log = logging.getLogger(__name__)
_MAX_HEAD_BYTES = 8192
_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 32
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class PortError(FtlaunchError):
    """An address cannot be listened on. Caught where the port was asked for."""


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


Page = Callable[[Mapping[str, str]], Answer]
"""Header fields of the request, names in lower case -> answer."""


class TinyServer:
    """Serves pages by path. :meth:`close` it in the loop in which it was opened."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, address: str, port: int) -> str:
        """Listen; returns ``ADDRESS:PORT``, the port found when ``port`` is 0. Raises :class:`PortError`."""
        try:
            self._server = await asyncio.start_server(self._accept, address, port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            # asyncio words these errors itself, and says everything twice.
            why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise PortError(f"cannot listen on {_joined(address, port)}: {why}") from None
        return _joined(address, int(self._server.sockets[0].getsockname()[1]))

    def close(self) -> None:
        """Stop listening and drop the connections."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(self._exchange(reader, writer), _TIMEOUT_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            # Whoever asked has gone, or never asked.
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        bare, answer = self._answer(head)
        lines = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Other')}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        )
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if bare else answer.body))
        await writer.drain()
        writer.write_eof()
        # The peer closes first, so that no answer is lost to a reset.
        with contextlib.suppress(ConnectionError):
            await reader.read()

    def _answer(self, head: bytes) -> tuple[bool, Answer]:
        request, _, rest = head.partition(b"\r\n")
        words = request.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return False, Answer(b"bad request\n", status=400)
        method, target = words[0], words[1].split(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            return False, Answer(b"only GET and HEAD\n", status=405)
        page = self._pages.get(target)
        if page is None:
            return method == b"HEAD", Answer(f"only {' '.join(sorted(self._pages))}\n".encode(), status=404)
        try:
            return method == b"HEAD", page(_fields(rest))
        except Exception:  # noqa: BLE001
            # The top of a request: a page that fails must not trouble the job.
            _log.exception("no answer to %s", target)
            return method == b"HEAD", Answer(b"internal error\n", status=500)


def _fields(head: bytes) -> dict[str, str]:
    found = {}
    for line in head.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
