"""What the command line needs to know about this machine and this process, in one place that tests replace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Facts, and questions that cost something and are therefore asked only when needed."""

    executable: str
    """The interpreter that runs ftlaunch."""
    orig_argv: tuple[str, ...]
    """Its whole command line, interpreter flags included."""
    cpus: frozenset[int]
    """CPUs this process may use (sched_getaffinity(2))."""
    count_gpus: Callable[[Sequence[str] | None], int]
    count_xpus: Callable[[Mapping[str, str]], int]
    is_local: Callable[[str], bool]
    """Whether a host name or address is this machine's. May ask the name service, which may take seconds."""


def this_machine() -> Machine:
    """The real one."""
    return Machine(
        executable=sys.executable,
        orig_argv=tuple(sys.orig_argv),
        cpus=frozenset(os.sched_getaffinity(0)),
        count_gpus=_count_gpus,
        count_xpus=_count_xpus,
        is_local=is_local,
    )


def _count_gpus(chosen: Sequence[str] | None) -> int:
    from ftlaunch.launcher.host.devices import count_gpus

    return count_gpus(chosen)


def _count_xpus(environ: Mapping[str, str]) -> int:
    from ftlaunch.launcher.host.devices import count_xpus

    return count_xpus(environ)


def is_local(host: str) -> bool:
    """Whether ``host`` names this machine. A name that cannot be looked up doesn't.

    An address is ours if a socket can be bound to it (EADDRNOTAVAIL otherwise, ip(7)).
    """
    import socket

    if host.lower() in {"localhost", socket.gethostname().lower()}:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def is_numeric(host: str) -> bool:
    """Whether ``host`` is an IP address, of either version, and not a name."""
    import socket

    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return True
    return False


def _can_bind(family: int, address: object) -> bool:
    import socket

    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)  # type: ignore[arg-type]
    except OSError:
        return False
    return True
