"""Carries out a fault on this node, from the agent."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ftlaunch.launcher.drill.board import OwnGroup
from ftlaunch.launcher.drill.plan import Kind
from ftlaunch.launcher.host import proctree

if TYPE_CHECKING:
    from ftlaunch.launcher.processes.process import WorkerProcess

OOM_LIMIT = 64 << 20
_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
_SWAP_FILES = {1: ("memory.memsw.limit_in_bytes", str(OOM_LIMIT)), 2: ("memory.swap.max", "0")}


def strike_rank(kind: Kind, worker: WorkerProcess) -> None:
    """Do to a rank what can be done from outside. Raises OSError where the system refuses."""
    if kind is Kind.KILL:
        worker.signal(signal.SIGKILL)
    elif kind is Kind.STOP:
        worker.signal(signal.SIGSTOP)
    elif kind is Kind.DISK_FULL:
        hard = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (0, hard))
    else:
        raise ValueError(f"{kind.value} is not done to a rank from outside")


def strike_node(kind: Kind) -> None:
    """End this agent, for ``node-loss`` with everything below it. Does not come back."""
    if kind is Kind.NODE_LOSS:
        kill_together([entry.pid for entry in proctree.descendants(proctree.read_table(), os.getpid())])
    os.kill(os.getpid(), signal.SIGKILL)


def kill_together(pids: Collection[int]) -> None:
    """SIGKILL all of them; stopped before, so that none sees another one die, as when a machine is gone."""
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)


def make_group(pid: int | str = "self") -> OwnGroup | str:
    """A memory control group with a small limit beside or below that of ``pid``; the reason where there can be none.

    See cgroups(7): version 2 wants the controller enabled for the children of a group without processes.
    """
    from ftlaunch.launcher.evidence import cgroups

    here = cgroups.locate(pid)
    if here is None:
        return "no memory control group can be seen from here"
    problem = ""
    for parent in (here.path, here.path.parent) if here.path != here.top else (here.path,):
        folder = parent / f"ftlaunch-drill-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
        except OSError as error:
            problem = f"no control group can be made in {parent} ({error.strerror})"
            continue
        problem = _set_limit(folder, here.version)
        if not problem:
            return OwnGroup(folder, OOM_LIMIT)
        remove_group(folder)
    return problem


def _set_limit(folder: Path, version: int) -> str:
    file = folder / _LIMIT_FILES[version]
    try:
        if not file.exists() or not os.access(folder / "cgroup.procs", os.W_OK):
            return f"{folder.parent} does not pass the memory controller on to groups below it"
        file.write_text(str(OOM_LIMIT), encoding="ascii")
        name, value = _SWAP_FILES[version]
        # Only where swap is accounted for; without it the limit alone holds.
        with contextlib.suppress(OSError):
            (folder / name).write_text(value, encoding="ascii")
    except OSError as error:
        return f"{file} cannot be written ({error.strerror})"
    return ""


def remove_group(folder: Path) -> bool:
    """Remove a group once nobody is in it; True when it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
