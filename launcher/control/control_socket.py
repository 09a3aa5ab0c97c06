"""The control socket: what ``ftctl`` talks to. One JSON line each way, same user only.

The socket lies in the agent's 0700 runtime directory and is 0600 itself; on top of that the kernel says who connects
(SO_PEERCRED, unix(7)). A client can hold a connection open, send garbage or vanish without any effect on the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ftlaunch.launcher.errors import FtlaunchError

MAX_REQUEST = 65536
REQUEST_TIMEOUT_S = 5.0
_UCRED = struct.Struct("3i")

Handler = Callable[[Mapping[str, Any]], Awaitable[Any]]


class RequestError(FtlaunchError):
    """The request cannot be served; the text is the answer. Raised by handlers, sent to the client."""


class ControlServer:
    """Serves the handlers until :meth:`close`."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._server: asyncio.AbstractServer | None = None

    async def open(self, path: str) -> None:
        """Listen at ``path``. Raises :class:`OSError` when the socket cannot be made there."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=MAX_REQUEST)
        os.chmod(path, 0o600)

    async def close(self) -> None:
        """Stop listening; answers under way are dropped."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer_uid(writer) in (os.getuid(), 0):
                answer = await self._answer(reader)
                writer.write(json.dumps(answer).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), REQUEST_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError):
            # The client is gone or does not read: its problem.
            pass
        except asyncio.CancelledError:
            # The agent ends. Nobody awaits this task, and asyncio prints a traceback for one that ends as cancelled.
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Mapping[str, Any]:
        try:
            line = await asyncio.wait_for(reader.readline(), REQUEST_TIMEOUT_S)
            request = json.loads(line)
        except (ValueError, RecursionError):
            return {"error": "the request is not one line of JSON"}
        command = request.get("command") if isinstance(request, dict) else None
        if not isinstance(command, str) or command not in self._handlers:
            return {"error": f"unknown command; known are {', '.join(sorted(self._handlers))}"}
        try:
            return {"result": await self._handlers[command](request)}
        except RequestError as error:
            return {"error": str(error)}


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    connection: socket.socket = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def ask(path: str, command: str, timeout_s: float = 10.0, **arguments: Any) -> Any:
    """Ask an agent, from ``ftctl``. Blocks for at most ``timeout_s``.

    Raises :class:`RequestError` with the agent's answer when it refuses, :class:`OSError` when nobody listens.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(path)
        connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    answer = json.loads(line) if line else {"error": "the agent closed the connection"}
    if "error" in answer:
        raise RequestError(str(answer["error"]))
    return answer.get("result")
