"""Faults that a rank brings upon itself, exactly at a step: for drills. Imported only where FTLAUNCH_DRILLS is set.

That variable names a directory of this user. Below it, ``faults/<id>.json`` are the faults to come; the rank that one
is for looks at each of its steps whether it is due, and takes it by removing the file, so it happens once however many
lives the rank has. Where there is a directory ``steps``, every step is written down in ``steps/<rank>``.

A due fault is told to the agent first, as a HELLO of the phase ``drill``. No thread, no signal, no timer: without a
step there is no fault.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
from time import monotonic, time_ns

from ftlaunch.heartbeat.client import BEAT, CLIENT, HELLO, Client
from ftlaunch.heartbeat.harmless import Harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TICK_NS = 100_000_000
"""A directory's time of change may stand still for so long while it is changed (ext4 and others: one jiffy)."""
_CHUNK = 1 << 20
_MAX_BYTES = 1 << 16


class DrillFault(RuntimeError):
    """Raised in the training loop by a drill, on purpose. Not to be caught."""


def arm(folder: str, environment: Mapping[str, str], client: Client = CLIENT) -> None:
    """From now on look for faults at each step. Nothing, if the directory is none that only this user can write to."""
    rank = environment.get("RANK", "")
    with Harmless():
        if rank.isdecimal() and is_private(folder):
            board = Board(folder, int(rank), environment.get("FTLAUNCH_GENERATION", ""), client)
            client.after_step = board.after_step


def is_private(folder: str) -> bool:
    """Whether it is a directory of this user that nobody else may write to. Raises OSError when it is not there."""
    found = os.stat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


class Board:
    """What one process knows of the directory."""

    def __init__(self, folder: str, rank: int, generation: str, client: Client) -> None:
        self._faults_at = os.path.join(folder, "faults")
        self._steps_at = os.path.join(folder, "steps")
        self._rank = rank
        self._generation = generation
        self._client = client
        self._count = 0
        self._seen_ns = 0
        self._faults: list[dict[str, Any]] = []

    def after_step(self, kind: int, number: int) -> None:
        """The rank has just made a step and said so. ``number``: as sent, negative for none."""
        self._count += 1
        told = number if kind == BEAT and number >= 0 else None
        with Harmless():
            self._note(told)
            self._look()
        for fault in list(self._faults):
            if self._is_due(fault, told):
                self._faults.remove(fault)
                self._take(fault, told)

    def _note(self, told: int | None) -> None:
        """Opened anew each time: a script may close every descriptor that it does not know."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            ledger = os.open(os.path.join(self._steps_at, str(self._rank)), flags, 0o600)
        except OSError:
            return
        try:
            line = f"{os.getpid()} {self._generation} {self._count} {'-' if told is None else told}\n"
            os.write(ledger, line.encode())
        finally:
            os.close(ledger)

    def _look(self) -> None:
        try:
            changed_ns = os.stat(self._faults_at).st_mtime_ns
        except OSError:
            return
        if changed_ns != self._seen_ns or time_ns() - changed_ns < _TICK_NS:
            self._seen_ns = changed_ns
            found = (self._read(name) for name in sorted(os.listdir(self._faults_at)) if name.endswith(".json"))
            self._faults = [fault for fault in found if fault is not None and fault.get("rank") == self._rank]

    def _read(self, name: str) -> dict[str, Any] | None:
        path = os.path.join(self._faults_at, name)
        try:
            with open(path, "rb") as file:
                fault = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError):
            return None
        return {**fault, "path": path} if isinstance(fault, dict) else None

    def _is_due(self, fault: Mapping[str, Any], told: int | None) -> bool:
        at_step, after = fault.get("at_step"), fault.get("after_steps")
        if isinstance(at_step, int):
            return (self._count if told is None else told) >= at_step
        return self._count >= (after if isinstance(after, int) else 0)

    def _take(self, fault: Mapping[str, Any], told: int | None) -> None:
        try:
            os.unlink(fault["path"])
        except OSError:
            # Taken already, or withdrawn.
            return
        payload: dict[str, object] = {
            "pid": os.getpid(),
            "phase": "drill",
            "fault": fault.get("id"),
            "kind": fault.get("kind"),
            "step": self._count if told is None else told,
            "at": monotonic(),
        }
        self._client.tell(HELLO, payload)
        _strike(str(fault.get("kind")), fault)


def _strike(kind: str, fault: Mapping[str, Any]) -> None:
    """Do it. Unknown kinds (``mark``) are only told."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "spin":
        while True:
            pass
    elif kind == "exception":
        raise DrillFault(f"drill: fault {fault.get('id')}")
    elif kind == "disk-full":
        # Python ignores SIGXFSZ, so that writes fail with EFBIG.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif kind == "oom":
        _use_up(str(fault.get("group")), int(fault.get("limit", 0)))


def _use_up(group: str, limit: int) -> None:
    """Move into the control group and take twice as much as it allows; no more, should the limit not hold."""
    with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as members:
        members.write(str(os.getpid()))
    kept = [b"x" * _CHUNK for _ in range(2 * limit // _CHUNK)]
    raise DrillFault(f"drill: {len(kept)} MiB were taken in {group}, which allows {limit >> 20}, and nobody was killed")
