"""Looking at files with bounded work, and the one exception that says why something is no complete checkpoint."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ftlaunch.launcher.checkpoints.model import show

MAX_JSON_BYTES = 64 << 20
MAX_CHILDREN = 100_000


class Incomplete(Exception):
    """Not a complete checkpoint; the text says why. Caught per entry by the scan."""


@dataclass(frozen=True)
class Entry:
    """One name in the checkpoint directory, symbolic links followed. ``children`` is empty for a file."""

    path: str
    name: str
    is_dir: bool
    size: int = 0
    mtime_ns: int = 0
    identity: tuple[int, int] = (0, 0)
    children: frozenset[str] = frozenset()

    def child(self, *names: str) -> str:
        """Path of something inside."""
        return os.path.join(self.path, *names)


@dataclass(frozen=True)
class Facts:
    """What verifying found besides "complete"."""

    step: int | None = None
    """The step according to the content."""
    parts: frozenset[str] = frozenset()
    """What it consists of, comparable between steps: one that lacks what most others have is not whole."""


def look(path: str) -> Entry:
    """Stat and, for a directory, list. Raises :class:`Incomplete` when that cannot be done."""
    with explained(path):
        info = os.stat(path)
        is_dir = stat.S_ISDIR(info.st_mode)
        if not is_dir and not stat.S_ISREG(info.st_mode):
            raise Incomplete("neither a file nor a directory")
        children = frozenset(list_names(path)) if is_dir else frozenset()
    name = os.path.basename(path)
    return Entry(path, name, is_dir, info.st_size, info.st_mtime_ns, (info.st_dev, info.st_ino), children)


def list_names(path: str, limit: int = MAX_CHILDREN) -> list[str]:
    """At most ``limit`` names in a directory. Raises :class:`OSError`."""
    with os.scandir(path) as entries:
        return [entry.name for entry in itertools.islice(entries, limit)]


def list_kinds(path: str, limit: int) -> tuple[frozenset[str], frozenset[str]]:
    """At most ``limit`` names in a directory, and which of them are plain files. Raises :class:`OSError`."""
    names: set[str] = set()
    plain: set[str] = set()
    with os.scandir(path) as entries:
        for entry in itertools.islice(entries, limit):
            names.add(entry.name)
            with contextlib.suppress(OSError):  # only where the file system gives no d_type: readdir(3)
                if entry.is_file(follow_symlinks=False):
                    plain.add(entry.name)
    return frozenset(names), frozenset(plain)


def size_of(path: str) -> int:
    """Size of a regular file. Raises :class:`Incomplete` when it is missing, empty or no file."""
    with explained(path):
        info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise Incomplete(f"{_short(path)} is not a file")
    if info.st_size == 0:
        raise Incomplete(f"{_short(path)} has 0 bytes")
    return info.st_size


def read_bounded(path: str, limit: int) -> bytes:
    """The whole file. Raises :class:`Incomplete` when it cannot be read or is longer than ``limit`` bytes."""
    size_of(path)  # opening a pipe would wait for its writer
    with explained(path), open(path, "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise Incomplete(f"{_short(path)} is longer than {limit} bytes")
    return data


def read_json(path: str) -> dict[str, Any]:
    """A JSON object. Raises :class:`Incomplete` when the file is missing, cut off or something else."""
    try:
        value = json.loads(read_bounded(path, MAX_JSON_BYTES))
    except (ValueError, RecursionError):
        raise Incomplete(f"{_short(path)} is not valid JSON: cut off?") from None
    if not isinstance(value, dict):
        raise Incomplete(f"{_short(path)} is not a JSON object")
    return value


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what the file system says into :class:`Incomplete`."""
    try:
        yield
    except OSError as error:
        raise Incomplete(f"{_short(path)} {_because(error)}") from None
    except ValueError:
        # os.stat and open say this for a name with a NUL byte, which can only come out of a damaged index.
        raise Incomplete(f"{_short(path)} is not a possible file name") from None


def _because(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "is missing"
    if error.errno == errno.ELOOP:
        return "is a symbolic link that leads to itself"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be read by this user"
    if error.errno == errno.ESTALE:
        return "vanished on the file server"
    return f"cannot be read ({error.strerror or error})"


def _short(path: str) -> str:
    return show(os.path.basename(path.rstrip("/")) or path)
