"""Following a file while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ftlaunch.launcher.host.growth import SURE_S, Waiter


def follow_lines(path: Path, ended: Callable[[], bool]) -> Iterator[bytes]:
    """Yield whole lines as they are written, until ``ended()`` and nothing more is there. Raises OSError."""
    waiter = Waiter()
    waiter.watch(path)
    try:
        with open(path, "rb") as file:
            pending = b""
            while True:
                # Asked before reading: what was written before the end is still delivered.
                over = ended()
                while line := file.readline():
                    pending += line
                    if pending.endswith(b"\n"):
                        yield pending
                        pending = b""
                if over:
                    return
                waiter.wait(SURE_S)
    finally:
        waiter.close()
