"""Whoever talks nonsense to the control socket or the meeting point is answered or cut off; the others are served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftlaunch.launcher.control.control_socket import MAX_REQUEST, ControlServer, RequestError
from ftlaunch.rendezvous.common.records import VERSION, FailureKind, FailureRecord, NodeRecord
from ftlaunch.rendezvous.hub.frames import Hello, frame, wish_frame
from ftlaunch.rendezvous.hub.server import Hub, listen_at
from ftlaunch.rendezvous.hub.settings import HubSettings
from ftlaunch.rendezvous.interface import ExclusionWish

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# --- the control socket -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fz-"))
    yield path
    shutil.rmtree(path)


async def echo(request: Mapping[str, Any]) -> Any:
    if "refuse" in request:
        raise RequestError("no")
    return dict(request)


REQUESTS = (
    st.binary(max_size=300)
    | st.builds(lambda value: json.dumps(value).encode() + b"\n", JSON)
    | st.builds(lambda value: json.dumps({"command": "echo", "x": value}).encode() + b"\n", JSON)
    | st.sampled_from([b"[" * 60_000 + b"\n", b"x" * (MAX_REQUEST + 2), b'{"command": "echo", "refuse": 1}\n'])
)


@MANY
@given(requests=st.lists(REQUESTS, max_size=5))
def test_any_request_is_answered_with_one_line_and_the_next_one_is_served(folder: Path, requests: list[bytes]) -> None:
    async def ask(path: str, data: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(data)
            writer.write_eof()
            return await reader.read()
        except OSError:
            # Too long: it has hung up.
            return b""
        finally:
            writer.close()

    async def scenario() -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        server, path = ControlServer({"echo": echo}), str(folder / "s")
        await server.open(path)
        try:
            for request in requests:
                answer = await ask(path, request)
                assert answer.count(b"\n") in (0, 1)
                assert not answer or {"error", "result"} & set(json.loads(answer))
            assert json.loads(await ask(path, b'{"command": "echo", "x": 1}\n'))["result"]["x"] == 1
        finally:
            await server.close()
            os.unlink(path)
        assert not unhandled

    asyncio.run(scenario())


# --- the meeting point ------------------------------------------------------------------------------------------------

HELLO = Hello("job", "good", "h", 1, "127.0.0.1", 1, "m-good")
GOOD = {
    "node": NodeRecord("bad", "h", 1, "a", 7, 1, asked=0).encode(),
    "failure": FailureRecord(0, FailureKind.FAILED, "bad", "h", "boom", "f").encode(),
    "exclude": wish_frame("x", ExclusionWish("good", force=True)),
    "ping": b"1",
}
KNOWN = ("node", "failure", "finish", "table", "question", "answer", "exclude", "excluded", "ping", "hello", "bye")
WORDS = st.sampled_from([*KNOWN, "x", ""])
PAYLOADS = (
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b""))
    | st.builds(lambda value: json.dumps({"v": VERSION, **value}).encode(), st.dictionaries(st.text(max_size=5), JSON))
    | st.builds(
        lambda word, name, value: json.dumps({**json.loads(GOOD[word]), name: value}).encode(),
        st.sampled_from(["node", "failure", "exclude"]),
        st.sampled_from(["wish", "attempt", "node_id", "generation", "slots", "asked", "offers", "kind", "order", "v"]),
        JSON,
    )
    | st.sampled_from([b"[" * 100_000, b"9" * 5000, *GOOD.values()])
)
FRAMES = st.builds(frame, WORDS, PAYLOADS) | st.binary(max_size=60)


@MANY
@given(frames=st.lists(FRAMES, max_size=8), greets=st.booleans())
def test_whatever_a_guest_says_the_next_one_is_welcome(
    caplog: pytest.LogCaptureFixture, frames: list[bytes], greets: bool
) -> None:
    caplog.clear()

    async def scenario() -> None:
        listening = listen_at(0)
        port = listening.getsockname()[1]
        limits = HubSettings("127.0.0.1", port, "job", 9, 9, node_timeout_s=20.0, allow_multiple_agents_per_node=True)
        hub = Hub(limits, replace(HELLO, node_id="host"), lambda offers: {})
        serving = asyncio.ensure_future(hub.serve(listening))
        try:
            heard, rude = await asyncio.open_connection("127.0.0.1", port)
            bad = frame("hello", replace(HELLO, node_id="bad").encode())
            rude.write(b"".join([bad] * greets + frames))
            # Who is sent away before all that it said was read is reset.
            with contextlib.suppress(OSError):
                rude.write_eof()
                await asyncio.wait_for(heard.read(), 10)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(frame("hello", HELLO.encode()) + frame("ping", b"7"))
            line = b""
            while not line.startswith(b"pong"):
                line = await asyncio.wait_for(reader.readline(), 10)
                assert line, "is not served"
            for each in (rude, writer):
                each.close()
        finally:
            await hub.close(0.0)
            serving.cancel()
            await asyncio.wait([serving])

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert not caplog.records, "a conversation ended with an exception"
