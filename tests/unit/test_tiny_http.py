"""The agent's small HTTP server: what it answers, what it refuses, what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from ftlaunch.launcher.views import tiny_http
from ftlaunch.launcher.views.tiny_http import Answer, PortError, TinyServer


def broken(fields: Mapping[str, str]) -> Answer:
    raise ValueError("a defect")


PAGES = {
    "/a": lambda fields: Answer(f"hello {fields.get('x-name', '')}".encode()),
    "/busy": lambda fields: Answer(b"no", status=503),
    "/broken": broken,
}


def served(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def opened(server: TinyServer) -> int:
    return int((await server.open("127.0.0.1", 0)).rpartition(":")[2])


@pytest.mark.parametrize(
    ("request_bytes", "status", "body"),
    [
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX-Name: you\r\n\r\n", 200, b"hello you"),
        (b"GET /a?b=/broken HTTP/1.0\r\n\r\n", 200, b"hello "),
        (b"HEAD /a HTTP/1.1\r\n\r\n", 200, b""),
        (b"GET /busy HTTP/1.1\r\n\r\n", 503, b"no"),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500, b"internal error\n"),
        (b"GET /b HTTP/1.1\r\n\r\n", 404, b"only /a /broken /busy\n"),
        (b"GET /../a HTTP/1.1\r\n\r\n", 404, b"only /a /broken /busy\n"),
        (b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405, b"only GET and HEAD\n"),
        (b"GET /a\r\n\r\n", 400, b"bad request\n"),
        (b"\x16\x03\x01\x00\xff\r\n\r\n", 400, b"bad request\n"),
        (b"GET /a HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 400, b"bad request\n"),
    ],
)
def test_answers(request_bytes: bytes, status: int, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server = TinyServer(PAGES)
        try:
            head, _, got = (await ask(await opened(server), request_bytes)).partition(b"\r\n\r\n")
        finally:
            server.close()
        assert (int(head.split()[1]), got) == (status, body)
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
        assert b"HEAD" in request_bytes or int(length.split()[1]) == len(got)

    logging.getLogger("ftlaunch").propagate = True
    served(work())


def test_a_port_in_use_is_one_line() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(PortError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use$"):
                await TinyServer(PAGES).open("127.0.0.1", port)

    served(work())


def test_an_address_of_another_machine_is_one_line() -> None:
    async def work() -> None:
        with pytest.raises(PortError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
            await TinyServer(PAGES).open("192.0.2.1", 0)

    served(work())


def test_whoever_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_http, "_TIMEOUT_S", 0.05)

    async def work() -> None:
        server = TinyServer(PAGES)
        try:
            assert await ask(await opened(server), b"GET /a HT") == b""
        finally:
            server.close()

    served(work())


def test_too_many_connections_are_turned_away_and_the_rest_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_http, "_MAX_CONNECTIONS", 2)

    async def work() -> None:
        server = TinyServer(PAGES)
        port = await opened(server)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
            first_reader, first = idle[0]
            first.write(b"GET /a HTTP/1.1\r\n\r\n")
            assert (await first_reader.read()).endswith(b"hello ")
        finally:
            server.close()
            for _, writer in idle:
                writer.close()

    served(work())


def test_closing_drops_open_connections() -> None:
    async def work() -> None:
        server = TinyServer(PAGES)
        reader, writer = await asyncio.open_connection("127.0.0.1", await opened(server))
        writer.write(b"GET /a")
        server.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    served(work())
