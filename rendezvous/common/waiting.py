"""A node whose ranks have all succeeded waits for the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("ftlaunch.rendezvous")

_LOOK_S = 1.0


class WaitAtEnd:
    """Waits at most once at a time. On the agent's loop.

    ``in_touch()``: whether the meeting point still counts on this node. As long as it does, the wait goes on: others
    work, and need this node once more if they fail.
    """

    def __init__(self, in_touch: Callable[[], bool]) -> None:
        self._in_touch = in_touch
        self._future: asyncio.Future[int] | None = None
        self._own_result = 0

    @property
    def waiting(self) -> bool:
        """Whether this node has finished and waits."""
        return self._future is not None

    async def wait(self, own_result: int, limit_s: float) -> int:
        """Return the job's exit code, or ``own_result`` after ``limit_s`` without touch."""
        loop = asyncio.get_running_loop()
        self._future, self._own_result = loop.create_future(), own_result
        last = loop.time()
        try:
            while not self._future.done():
                await asyncio.wait({self._future}, timeout=min(_LOOK_S, limit_s))
                last = loop.time() if self._in_touch() else last
                if loop.time() - last >= limit_s:
                    self.over()
                    log.warning("the rendezvous did not end within %g s; this node ends with its own result", limit_s)
            return self._future.result()
        finally:
            self._future = None

    def over(self, exit_code: int | None = None) -> None:
        """Wait no more: the job has ended with that code; ``None``: the node's own result stands."""
        if self._future is not None and not self._future.done():
            self._future.set_result(self._own_result if exit_code is None else exit_code)
