"""Who started us: a shell as PID 1 keeps a container's stop signal to itself."""

from __future__ import annotations

import os

from ftlaunch.launcher.host import proctree

_SHELLS = frozenset({"sh", "ash", "bash", "busybox", "dash", "ksh", "zsh"})


def hint_of_deaf_shell() -> str:
    """One line when the parent is a shell that is PID 1; else empty.

    The kernel drops SIGTERM for a PID 1 without a handler (pid_namespaces(7)), and a shell would not pass it on.
    """
    entry = proctree.read_entry(1) if os.getppid() == 1 else None
    if entry is None or entry.name not in _SHELLS:
        return ""
    return (
        f"the parent is {entry.name} as PID 1, which passes no SIGTERM on: when the container is stopped, ranks cannot "
        f'save; make ftlaunch the command itself, or write {entry.name} -c "exec ftlaunch ..."'
    )
