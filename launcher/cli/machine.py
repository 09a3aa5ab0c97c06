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
        is_local=_is_local,
    )


def _count_gpus(chosen: Sequence[str] | None) -> int:
    from ftlaunch.launcher.host.devices import count_gpus

    return count_gpus(chosen)


def _count_xpus(environ: Mapping[str, str]) -> int:
    from ftlaunch.launcher.host.devices import count_xpus

    return count_xpus(environ)


def _is_local(host: str) -> bool:
    from ftlaunch.rendezvous.common.addresses import is_own_address

    return is_own_address(host)


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
