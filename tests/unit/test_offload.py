"""Work in a thread: its result, its error, and a deadline that does not wait for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ftlaunch.launcher.processes.offload import in_thread


def test_result_and_error_arrive() -> None:
    assert asyncio.run(in_thread(lambda: threading.current_thread().name, 5.0)) == "ftlaunch-offload"

    def wrong() -> None:
        raise OSError("no such thing")

    with pytest.raises(OSError, match="no such thing"):
        asyncio.run(in_thread(wrong, 5.0))


def test_what_hangs_is_left_behind() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"no result within 0.05 s"):
        asyncio.run(in_thread(release.wait, 0.05))
    release.set()
