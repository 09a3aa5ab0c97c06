"""The control socket when the agent ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.launcher.control.control_socket import ControlServer


def test_an_answer_under_way_when_the_agent_ends_is_dropped_without_a_word(tmp_path: Path) -> None:
    unhandled: list[dict[str, Any]] = []
    path = str(tmp_path / "s")

    async def agent() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        asked = asyncio.Event()

        async def for_ever(request: Mapping[str, Any]) -> None:
            asked.set()
            await asyncio.Event().wait()

        server = ControlServer({"status": for_ever})
        await server.open(path)
        _, client = await asyncio.open_unix_connection(path)
        client.write(b'{"command": "status"}\n')
        await asked.wait()
        await server.close()
        client.close()

    asyncio.run(agent())
    assert not unhandled
