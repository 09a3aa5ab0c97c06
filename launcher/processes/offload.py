"""Work that could block, away from the event loop and with a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], timeout_s: float) -> T:
    """Run ``work`` in a daemon thread; nobody waits for it at exit. Raises what it raises, or ``TimeoutError``.

    For reads of /proc that may hang on another process's memory lock. Not for file systems that may be dead: a thread
    in uninterruptible sleep keeps the whole process from ending, so those are asked from a process of their own.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as caught:  # noqa: BLE001 - the top level of this thread; the caller gets it
            error = caught
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The loop has ended meanwhile.
            return

    threading.Thread(target=run, daemon=True, name="ftlaunch-offload").start()
    try:
        return await asyncio.wait_for(result, timeout_s)
    except asyncio.TimeoutError:
        raise TimeoutError(f"no result within {timeout_s:g} s") from None
