"""safetensors files and the index files that list shards.

File layout: 8 bytes little-endian length of a JSON header, the header, then the tensors' bytes at the offsets the
header gives, without holes (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import os

from ftlaunch.launcher.checkpoints import torchsave
from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, explained, read_json, size_of
from ftlaunch.launcher.checkpoints.model import show

MAX_HEADER_BYTES = 100_000_000
MAX_SHARDS = 20_000


def verify(entry: Entry) -> Facts:
    """A file is complete when it is as long as its header says. Raises :class:`Incomplete`."""
    verify_file(entry.path)
    return Facts()


def verify_file(path: str) -> None:
    """Check one file by its header and its size."""
    size = size_of(path)
    with explained(path), open(path, "rb") as stream:
        head = stream.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length == 0 or length > min(MAX_HEADER_BYTES, size - 8):
            raise Incomplete("cut off, or not a safetensors file")
        header = stream.read(length)
    expected = 8 + length + _data_bytes(header)
    if size < expected:
        raise Incomplete(f"cut off: has {size} bytes of {expected}")


def _data_bytes(header: bytes) -> int:
    try:
        tensors = json.loads(header)
        return max((int(t["data_offsets"][1]) for name, t in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise Incomplete("its safetensors header is damaged") from None


def verify_index(path: str) -> frozenset[str]:
    """Check ``*.index.json`` and every shard that it names; gives their names."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Incomplete(f"{show(os.path.basename(path))} names no shard")
    shards = {shard for shard in weight_map.values() if isinstance(shard, str)}
    if len(shards) > MAX_SHARDS:
        raise Incomplete(f"{show(os.path.basename(path))} names {len(shards)} shards")
    for shard in sorted(shards):
        verify_weights(os.path.join(os.path.dirname(path), shard))
    return frozenset(shards)


def verify_weights(path: str) -> None:
    """Check one file of weights, by its suffix, and name it in the reason."""
    try:
        if path.endswith(".safetensors"):
            verify_file(path)
        else:
            torchsave.verify_file(path)
    except Incomplete as error:
        name = show(os.path.basename(path))
        text = str(error)
        raise Incomplete(text if text.startswith(name) else f"{name}: {text}") from None
