"""Do the file systems that ranks need answer, and have they room? Asked in a process of its own, bounded."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.launcher.health.result import Healthy, Result, Unhealthy
from ftlaunch.launcher.processes.bystanders import run_bounded
from ftlaunch.launcher.wording import format_bytes

DEFAULT_MIN_FREE_BYTES = 64 << 20
_PROBE = Path(__file__).with_name("probe.py")
_ANSWER_BYTES = 1 << 20
_SHM_LOW_FRACTION = 0.05
_SHM_FULL_FRACTION = 0.01
_SHM_FULL_BYTES = 256 << 20


@dataclass(frozen=True)
class PathFacts:
    """What is known of the file system at ``path``. ``answered`` is false for a dead mount."""

    path: str
    answered: bool = True
    error: str = ""
    free: int = 0
    total: int = 0
    files_left: int | None = None
    read_only: bool = False


async def ask_paths(paths: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> tuple[PathFacts, ...]:
    """Ask for free space at each path, or at its nearest existing parent; about 30 ms, at most ``timeout_s`` + 1 s.

    Raises :class:`~ftlaunch.launcher.errors.SpawnError` when no process can be started.
    """
    if not paths:
        return ()
    argv = [sys.executable, "-I", "-S", str(_PROBE), *paths]
    finished = await run_bounded(argv, environment, timeout_s, keep_bytes=_ANSWER_BYTES)
    answers = {facts.path: facts for facts in _parse(finished.tail)}
    return tuple(answers.get(path, PathFacts(path, answered=False)) for path in paths)


def _parse(output: bytes) -> list[PathFacts]:
    return [PathFacts(**json.loads(line)) for line in output.splitlines() if line.startswith(b"{")]


def check_path(facts: PathFacts, timeout_s: float, min_free: int = DEFAULT_MIN_FREE_BYTES) -> Result:
    """Judge one place where ranks or the agent write."""
    if not facts.answered:
        reason = f"{facts.path} did not answer within {timeout_s:g} s: its file system hangs (a dead network mount?)"
        return Unhealthy("storage", reason)
    if facts.error:
        return Unhealthy("storage", f"{facts.path} can't be reached: {facts.error}")
    if facts.files_left == 0:
        return Unhealthy("disk", f"no more files can be made at {facts.path}: it is out of inodes")
    if facts.total and facts.free < min_free:
        need = format_bytes(min_free)
        return Unhealthy("disk", f"only {format_bytes(facts.free)} free at {facts.path}, needed are {need}")
    return Healthy("disk", f"{facts.path} is on a read-only file system" if facts.read_only else "")


def check_shm(facts: PathFacts) -> Result:
    """Judge ``/dev/shm``: data loaders and NCCL need it; what a crashed generation left there stays."""
    if not facts.answered or facts.error or not facts.total:
        return Healthy("shm", f"{facts.path} can't be used: {facts.error}" if facts.error else "")
    left = f"{format_bytes(facts.free)} of {format_bytes(facts.total)} free at {facts.path}"
    if facts.free < _SHM_FULL_FRACTION * facts.total and facts.free < _SHM_FULL_BYTES:
        return Unhealthy("shm", f"only {left}: --clean-shm removes what is left there and open nowhere")
    return Healthy("shm", f"only {left}" if facts.free < _SHM_LOW_FRACTION * facts.total else "")
