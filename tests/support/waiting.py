"""Wait for a condition, never for time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_PAUSE_S = 0.005


def wait_until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "") -> T:
    """Return the first true value of ``condition``; fail the test when none comes within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    never = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what or condition}")
        never.wait(_PAUSE_S)


def listens(endpoint: str) -> bool:
    """Return whether anybody listens at ``host:port``; of several, the first counts."""
    host, _, port = endpoint.partition(",")[0].removeprefix("http://").rpartition(":")
    with socket.socket() as trial:
        return trial.connect_ex((host, int(port))) == 0
