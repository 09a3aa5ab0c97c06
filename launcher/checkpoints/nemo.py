"""NeMo: ``.nemo`` archives, NeMo 2 directories (``context/`` and ``weights/``), older distributed directories.

A sibling ``<name>-unfinished`` marks a save in progress; that is looked at in :mod:`.scan`, for every format.
"""

from __future__ import annotations

import tarfile

from ftlaunch.launcher.checkpoints import dcp, lightning, megatron
from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, explained, look, size_of

SUFFIX = ".nemo"
WEIGHTS = "weights"
CONTEXT = "context"
MAX_MEMBERS = 100_000
GZIP_MAGIC = b"\x1f\x8b"
TAR_END = bytes(1024)


def recognise(entry: Entry) -> bool:
    """An archive, or a directory of NeMo 2."""
    if not entry.is_dir:
        return entry.name.endswith(SUFFIX)
    return WEIGHTS in entry.children and (CONTEXT in entry.children or "step=" in entry.name)


def verify(entry: Entry) -> Facts:
    """Complete when the archive has its end, or the weights all their shards. Raises :class:`Incomplete`."""
    if not entry.is_dir:
        if entry.name.endswith(SUFFIX):
            _verify_archive(entry)
            return Facts()
        return lightning.verify(entry)
    if WEIGHTS not in entry.children:
        return Facts(parts=megatron.verify_distributed(entry))
    try:
        parts = megatron.verify_distributed(look(entry.child(WEIGHTS)))
    except Incomplete as error:
        raise Incomplete(f"{WEIGHTS}: {error}") from None
    return Facts(parts=parts | (entry.children & {CONTEXT}))


def accepts(entry: Entry) -> bool:
    """What ``--checkpoint-format nemo`` looks at: also plain distributed directories and ``.ckpt`` files."""
    return recognise(entry) or dcp.recognise(entry) or lightning.recognise(entry)


def _verify_archive(entry: Entry) -> None:
    size = size_of(entry.path)
    with explained(entry.path), open(entry.path, "rb") as stream:
        if stream.read(2) == GZIP_MAGIC:
            # Only unpacking all of it would tell more; NeMo has not compressed since 1.0.
            return
        stream.seek(max(0, size - len(TAR_END)))
        if stream.read() != TAR_END:
            raise Incomplete("an archive without its end: cut off")
        stream.seek(0)
        try:
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                names = _member_names(archive)
        except (tarfile.TarError, ValueError, EOFError):
            raise Incomplete("not a readable tar archive") from None
    if not any("model_weights" in name or name.endswith(".ckpt") for name in names):
        raise Incomplete("an archive without model weights")


def _member_names(archive: tarfile.TarFile) -> list[str]:
    names = []
    for member in archive:
        names.append(member.name)
        if len(names) > MAX_MEMBERS:
            raise Incomplete(f"an archive of more than {MAX_MEMBERS} members")
    return names
