"""Files of ``torch.save``: the zip format since torch 1.6 and the older one, a row of pickles and raw storages.

A zip keeps its directory at the end, so a file that was cut off has none: that alone finds every partial write. Entry
headers are looked at too, for files whose middle was never written out before a power loss.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from typing import IO, Any

from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, explained, size_of
from ftlaunch.launcher.checkpoints.inert import InertMapping, InertUnpickler, load

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_HEAD = b"\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little")
MAX_PICKLE_BYTES = 16 << 20
MAX_MEMBERS = 200_000
SAMPLED_MEMBERS = 64
STEP_KEYS = ("global_step", "step", "iteration", "iter", "steps", "current_step", "global_steps")
ITEM_BYTES = {
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    "ComplexDoubleStorage": 16,
}


def verify(entry: Entry) -> Facts:
    """A file is complete when it opens as a whole. Its step is read from it. Raises :class:`Incomplete`."""
    return Facts(verify_file(entry.path, want_step=True))


def verify_file(path: str, want_step: bool = False) -> int | None:
    """Check one ``torch.save`` file; with ``want_step`` give the step found at the top level of what was saved."""
    size = size_of(path)
    with explained(path), open(path, "rb") as stream:
        head = stream.read(16)
        stream.seek(0)
        if head.startswith(ZIP_MAGIC):
            return _verify_zip(stream, size, want_step)
        if head[2:14] == LEGACY_HEAD:
            return _verify_legacy(stream, size)
    if not head.strip(b"\0"):
        raise Incomplete("begins with zeros: never written out")
    raise Incomplete("not a file of torch.save")


def _verify_zip(stream: IO[bytes], size: int, want_step: bool) -> int | None:
    try:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise Incomplete(f"a zip of {len(members)} members, more than torch.save writes")
            _check_members(stream, members, size)
            return _read_step(archive, members, want_step)
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise Incomplete(f"cut off or damaged: {str(error).lower() or 'bad zip'}") from None


def _check_members(stream: IO[bytes], members: list[zipfile.ZipInfo], size: int) -> None:
    for member in members:
        if member.header_offset + member.compress_size > size:
            raise Incomplete("its directory names data beyond its end")
    stride = max(1, len(members) // SAMPLED_MEMBERS)
    for member in {id(m): m for m in (*members[::stride], *members[-1:])}.values():
        stream.seek(member.header_offset)
        if stream.read(4) != ZIP_MAGIC:
            raise Incomplete("has a hole where data should be")


def _read_step(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], want_step: bool) -> int | None:
    pickled = next((member for member in members if os.path.basename(member.filename) == "data.pkl"), None)
    if pickled is None:
        raise Incomplete("a zip, but not one of torch.save (no data.pkl)")
    if not want_step or pickled.file_size > MAX_PICKLE_BYTES:
        return None
    with archive.open(pickled) as stream:
        data = stream.read()  # zipfile compares the CRC when it reaches the end
    return step_in(data)


def step_in(pickled: bytes) -> int | None:
    """The step a pickled mapping tells at its top level, ``None`` when there is none or the pickle is not a mapping."""
    try:
        return _step_of(load(InertUnpickler(io.BytesIO(pickled)), "data.pkl"))
    except Incomplete:
        # Its bytes are what was written (the CRC says so); we only cannot follow it. No reason to call it incomplete.
        return None


def _step_of(value: Any) -> int | None:
    if not isinstance(value, (dict, InertMapping)):
        return None
    for key in STEP_KEYS:
        step = value.get(key)
        if type(step) is int and 0 <= step < 1 << 62:
            return step
    return None


def _verify_legacy(stream: IO[bytes], size: int) -> int | None:
    """Five pickles (magic, version, system, object, keys), then per key a count of 8 bytes and the raw items."""
    if load(InertUnpickler(stream), "its header") != LEGACY_MAGIC:
        raise Incomplete("not a file of torch.save")
    load(InertUnpickler(stream), "its header")
    load(InertUnpickler(stream), "its header")
    content = InertUnpickler(stream)
    value = load(content, "its pickle")
    keys = load(InertUnpickler(stream), "its list of storages")
    expected = stream.tell() + _legacy_bytes(content.persistent_ids, keys)
    if size < expected:
        raise Incomplete(f"cut off: has {size} bytes of {expected}")
    return _step_of(value)


def _legacy_bytes(persistent_ids: list[Any], keys: Any) -> int:
    if not isinstance(keys, list):
        raise Incomplete("its list of storages is damaged")
    storages: dict[Any, int] = {}
    for pid in persistent_ids:
        if isinstance(pid, tuple) and pid[:1] == ("module",):
            continue  # the source text of a saved module
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and type(pid[4]) is int):
            raise Incomplete("its pickle names something that is no storage")
        # Unknown storage types count one byte an item: the check then is weaker, never wrong.
        storages[pid[2]] = pid[4] * ITEM_BYTES.get(getattr(pid[1], "pickled_name", ""), 1)
    return sum(8 + storages.get(key, 0) for key in keys if isinstance(key, str))
