"""Control groups made by a test, and always removed. Version 1 hierarchies, root only; skips elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until

_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A group whose processes together may use ``limit`` bytes, swap included. Processes join by :func:`join`."""
    with _group("memory", "memory.limit_in_bytes") as folder:
        (folder / "memory.limit_in_bytes").write_text(str(limit))
        # Only where swap is accounted for; without it the limit alone holds.
        with contextlib.suppress(OSError):
            (folder / "memory.memsw.limit_in_bytes").write_text(str(limit))
        yield folder


@contextlib.contextmanager
def freezer_group() -> Iterator[Path]:
    """A group whose processes can be frozen: SIGKILL has no effect on them until they are thawed."""
    with _group("freezer", "freezer.state") as folder:
        try:
            yield folder
        finally:
            thaw(folder)


def join(folder: Path, pid: int) -> None:
    """Move a process, with what it starts from now on."""
    (folder / "cgroup.procs").write_text(str(pid))


def freeze(folder: Path) -> None:
    """Freeze all processes of a freezer group; returns when they are."""
    (folder / "freezer.state").write_text("FROZEN")
    wait_until(lambda: (folder / "freezer.state").read_text().strip() == "FROZEN", 10, "frozen")


def thaw(folder: Path) -> None:
    """Let them run again."""
    with contextlib.suppress(OSError):
        (folder / "freezer.state").write_text("THAWED")


def members(folder: Path) -> list[int]:
    """Processes in the group, zombies left out."""
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


@contextlib.contextmanager
def _group(controller: str, needed_file: str) -> Iterator[Path]:
    parent = _own_folder(controller)
    folder = parent / f"ftlaunch-test-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no {controller} control group can be made at {parent}: {error.strerror}")
    try:
        if not (folder / needed_file).exists():
            pytest.skip(f"{parent} is not a version 1 {controller} hierarchy")
        yield folder
    finally:
        _remove(folder)


def _own_folder(controller: str) -> Path:
    """Below the group that we are in, so that an outer limit goes on to hold."""
    root = _ROOT / controller
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (root / path.lstrip("/")).is_dir():
            return root / path.lstrip("/")
    return root


def _remove(folder: Path) -> None:
    thaw(folder)

    def gone() -> bool:
        for pid in members(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            folder.rmdir()
        except OSError:
            return False
        return True

    wait_until(gone, 10, f"{folder} is removed")
