"""Directories of ``torch.distributed.checkpoint``.

``.metadata`` is written last, through a rename, and lists for every item the shard file, offset and length it lies at.
With ``use_collectives=False`` each rank writes a ``__<rank>.metadata`` of its own instead.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, explained, size_of
from ftlaunch.launcher.checkpoints.inert import Inert, InertUnpickler, load
from ftlaunch.launcher.checkpoints.model import show

METADATA = ".metadata"
SHARD_SUFFIX = ".distcp"
MAX_METADATA_BYTES = 64 << 20
"""Read in full up to here (some hundred MB of memory); of a larger one only the end and the shards on disk."""
OVERWRITE_SLACK_NS = 1_000_000_000
_RANK_METADATA = re.compile(r"__([0-9]{1,9})\.metadata")
_RANK_SHARD = re.compile(r"__([0-9]{1,9})_[0-9]+\.distcp")


def recognise(entry: Entry) -> bool:
    """A directory with the metadata or a shard of a distributed checkpoint."""
    return entry.is_dir and any(
        name in (METADATA, METADATA + ".tmp") or name.endswith(SHARD_SUFFIX) or _RANK_METADATA.fullmatch(name)
        for name in entry.children
    )


def verify(entry: Entry) -> Facts:
    """Complete when every shard named by the metadata exists and is long enough. Raises :class:`Incomplete`."""
    if METADATA + ".tmp" in entry.children:
        raise Incomplete("has a .metadata.tmp: a save was interrupted")
    if METADATA in entry.children:
        _verify_shards(entry, _shard_ends(entry.child(METADATA), entry))
        return Facts()
    return _verify_rank_metadata(entry)


def verify_overwritten(entry: Entry) -> Facts:
    """As :func:`verify`, for a directory that every save writes anew.

    There an old ``.metadata`` may stand beside shards of an interrupted newer save, of the same sizes. It is the
    last file of a good save, so no shard may be younger. (Not asked of a directory that is written once: a copy made
    without keeping times would fail.)
    """
    facts = verify(entry)
    with explained(entry.path):
        written = os.stat(entry.child(METADATA)).st_mtime_ns if METADATA in entry.children else None
        for shard in sorted(name for name in entry.children if name.endswith(SHARD_SUFFIX)):
            if written is not None and os.stat(entry.child(shard)).st_mtime_ns > written + OVERWRITE_SLACK_NS:
                raise Incomplete(f"{show(shard)} is newer than .metadata: a later save was interrupted")
    return facts


def _verify_rank_metadata(entry: Entry) -> Facts:
    ranks = {int(m.group(1)) for m in map(_RANK_METADATA.fullmatch, entry.children) if m}
    if not ranks:
        raise Incomplete("has no .metadata: the save did not finish")
    writers = ranks | {int(m.group(1)) for m in map(_RANK_SHARD.fullmatch, entry.children) if m}
    missing = set(range(max(writers) + 1)) - ranks
    if missing:
        raise Incomplete(f"rank {min(missing)} of {max(writers) + 1} wrote no metadata: the save did not finish")
    for rank in sorted(ranks):
        _verify_shards(entry, _shard_ends(entry.child(f"__{rank}.metadata"), entry), may_be_empty=True)
    # A missing last rank shows only against other checkpoints.
    return Facts(parts=frozenset(f"__{rank}.metadata" for rank in ranks))


def _verify_shards(entry: Entry, ends: dict[str, int], may_be_empty: bool = False) -> None:
    if not ends and not may_be_empty:
        raise Incomplete(".metadata names no shard file")
    for name, end in sorted(ends.items()):
        with explained(entry.child(name)):
            size = os.stat(entry.child(name)).st_size
        if size < end:
            raise Incomplete(f"shard {show(name)} has {size} bytes of {end}")


def _shard_ends(path: str, entry: Entry) -> dict[str, int]:
    """For every shard file named, where its last item ends."""
    size = size_of(path)
    if size > MAX_METADATA_BYTES:
        return _shards_on_disk(path, entry)
    ends: dict[str, int] = {}

    class StorageInfo(Inert):
        __slots__ = ()

        def __setstate__(self, state: Any) -> None:
            name, offset, length = (state.get(key) for key in ("relative_path", "offset", "length"))
            if not isinstance(name, str) or type(offset) is not int or type(length) is not int:
                raise ValueError("storage info")
            ends[name] = max(ends.get(name, 0), offset + length)

    with explained(path), open(path, "rb") as stream:
        load(InertUnpickler(stream, {"_StorageInfo": StorageInfo}), show(os.path.basename(path)))
    return ends


def _shards_on_disk(path: str, entry: Entry) -> dict[str, int]:
    with explained(path), open(path, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b".":
            raise Incomplete(".metadata is cut off")
    return {name: 1 for name in entry.children if name.endswith(SHARD_SUFFIX)}
