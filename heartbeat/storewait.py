"""Waiting for rank 0's store to listen, before torch looks for it.

A store client of torch that is refused tries again only after a quarter to three quarters of a second (2.13, measured),
which after a failure is longer than all the rest: warm ranks look for the store within milliseconds of its start. So
they look here, often, until somebody listens.
"""

from __future__ import annotations

import os
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LIMIT_S = 30.0
_CONNECT_S = 1.0
_PAUSE_S = 0.005
_MOST_PER_S = 20_000
"""Refused connections that rank 0's host is asked to answer per second, by all ranks together."""


def until_listening(environment: Mapping[str, str] = os.environ, limit_s: float = LIMIT_S) -> bool:
    """Wait until the store of this generation accepts connections; at once for rank 0, which makes it.

    ``False`` when it does not within ``limit_s``, or when waiting here is no use: torch then finds out by itself.
    """
    host, port, world = (environment.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
    if environment.get("RANK") == "0" or not host or not port:
        return False
    places = [(found[0], found[4]) for found in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    pause_s = max(_PAUSE_S, int(world or 1) / _MOST_PER_S)
    deadline = time.monotonic() + limit_s
    while not any(_listens(family, address) for family, address in places):
        if time.monotonic() >= deadline:
            return False
        threading.Event().wait(pause_s)
    return True


def _listens(family: int, address: tuple[Any, ...]) -> bool:
    """Raises :class:`OSError` when the host cannot be reached: refusals are the only thing worth waiting for."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            return False
        # A socket that picked the very port it looks for meets itself (tcp(7), simultaneous open).
        return bool(probe.getsockname() != probe.getpeername())
