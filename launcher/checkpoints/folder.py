"""Directories of torch files without a metadata file of their own: DeepSpeed, accelerate, one file per rank, ....

Each file in them has to be whole. Whether a file is missing altogether shows only against the other checkpoints,
or by a tracker file that the framework writes last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ftlaunch.launcher.checkpoints import safetensors
from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, explained, list_names
from ftlaunch.launcher.checkpoints.names import TORCH_SUFFIXES, is_temporary, part_of, step_of

MAX_DEPTH = 3
MAX_FILES = 20_000
INDEX_SUFFIX = ".index.json"
WEIGHTS = (*TORCH_SUFFIXES, ".safetensors")


def recognise(entry: Entry) -> bool:
    """A directory that holds files of torch or safetensors, at most two levels down."""
    if not entry.is_dir:
        return False
    if any(name.endswith(WEIGHTS) for name in entry.children):
        return True
    try:
        return any(name.endswith(WEIGHTS) for name in _walk(entry.path, MAX_DEPTH))
    except OSError:
        return False


def verify(entry: Entry) -> Facts:
    """Complete when every torch file in it is. Raises :class:`Incomplete`."""
    return Facts(parts=verify_tree(entry.path, step_of(entry.name)))


def verify_tree(path: str, step: int | None) -> frozenset[str]:
    """Check every file of weights below ``path``; gives their names, comparable between steps."""
    parts: set[str] = set()
    temporary: list[int] = []
    written: list[int] = []
    with explained(path):
        for name in _walk(path, MAX_DEPTH):
            full = os.path.join(path, name)
            if is_temporary(os.path.basename(name)):
                temporary.append(os.lstat(full).st_mtime_ns)
            elif name.endswith(WEIGHTS):
                safetensors.verify_weights(full)
                written.append(os.stat(full).st_mtime_ns)
                parts.add(part_of(name, step))
            elif name.endswith(INDEX_SUFFIX):
                safetensors.verify_index(full)
    # One that is older than all the rest was left by an interrupted save, and another one has gone over it since.
    if temporary and max(temporary) >= min(written, default=0):
        raise Incomplete("holds a temporary file: the save did not finish")
    if not parts:
        raise Incomplete("holds no file of torch.save or safetensors")
    return frozenset(parts)


def _walk(path: str, depth: int, below: str = "") -> Iterator[str]:
    """Relative names of the files below; symbolic links to directories are not followed, so loops are none."""
    for name in sorted(list_names(os.path.join(path, below), MAX_FILES)):
        relative = os.path.join(below, name)
        full = os.path.join(path, relative)
        if os.path.islink(full) or not os.path.isdir(full):
            yield relative
        elif depth > 1:
            yield from _walk(path, depth - 1, relative)
