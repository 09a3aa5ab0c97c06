"""The thread in which all talk with the meeting point happens, on an event loop of its own.

It only carries out calls and brings back results; nothing is decided there. It is a thread because a lease must be
renewed even while the agent's own loop is held up, say by a log file on a slow disk: the workers are running all the
same.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class IoThread:
    """Runs coroutines for others. May serve several rendezvous of one process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="ftlaunch-rendezvous", daemon=True)
        self._ready = threading.Event()
        self._on_end: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start the thread and wait for its loop: well under a millisecond of work."""
        self._thread.start()
        self._ready.wait()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back, in this thread, as its last act: whoever depends on it must know that it is gone."""
        self._on_end.append(callback)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin; the result is in the future. Raises :class:`RuntimeError` when the thread has ended."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work.close()
            raise RuntimeError("the rendezvous thread has ended")
        return asyncio.run_coroutine_threadsafe(work, loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the thread and wait here; cancelling here cancels there."""
        return await asyncio.wrap_future(self.submit(work))

    async def call(self, function: Callable[[], T]) -> T:
        """Call on the thread what may block, such as a look-up of a name, and wait here."""

        async def called() -> T:
            return function()

        return await self.run(called())

    async def stop(self, timeout_s: float) -> bool:
        """Cancel what runs and end the thread.

        Returns whether it has ended after ``timeout_s``; if not, it ends with the process.
        """
        here, ended = asyncio.get_running_loop(), asyncio.Event()
        self.when_ended(lambda: _wake(here, ended))
        loop = self._loop
        if loop is None or loop.is_closed():
            return True
        loop.call_soon_threadsafe(loop.stop)
        try:
            await asyncio.wait_for(ended.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        # All that is left of it is to return.
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        asyncio.set_event_loop(loop)
        loop.call_soon(self._ready.set)
        try:
            loop.run_forever()
            _cancel_all(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            for callback in self._on_end:
                callback()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # nobody waits any more
        loop.call_soon_threadsafe(event.set)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    loop.run_until_complete(loop.shutdown_asyncgens())
