"""A node whose ranks have all succeeded waits for the others."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("ftlaunch.rendezvous")


class WaitAtEnd:
    """Waits at most once at a time. On the agent's loop."""

    def __init__(self) -> None:
        self._future: asyncio.Future[int] | None = None
        self._own_result = 0

    @property
    def waiting(self) -> bool:
        """Whether this node has finished and waits."""
        return self._future is not None

    async def wait(self, own_result: int, limit_s: float) -> int:
        """Return the job's exit code, or ``own_result`` when nobody tells one in time."""
        self._future, self._own_result = asyncio.get_running_loop().create_future(), own_result
        try:
            return await asyncio.wait_for(self._future, limit_s)
        except asyncio.TimeoutError:
            log.warning("the rendezvous did not end within %g s; this node ends with its own result", limit_s)
            return own_result
        finally:
            self._future = None

    def over(self, exit_code: int | None = None) -> None:
        """Wait no more: the job has ended with that code; ``None``: the node's own result stands."""
        if self._future is not None and not self._future.done():
            self._future.set_result(self._own_result if exit_code is None else exit_code)
