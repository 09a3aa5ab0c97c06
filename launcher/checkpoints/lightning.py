"""Lightning's ``*.ckpt``: a file of torch.save that tells its ``global_step``, or a directory of a sharded strategy."""

from __future__ import annotations

from ftlaunch.launcher.checkpoints import dcp, folder, torchsave
from ftlaunch.launcher.checkpoints.files import Entry, Facts

SUFFIX = ".ckpt"


def recognise(entry: Entry) -> bool:
    """By the suffix."""
    return entry.name.endswith(SUFFIX)


def verify(entry: Entry) -> Facts:
    """Complete when the file opens as a whole, or every shard of the directory is there. Raises ``Incomplete``."""
    if not entry.is_dir:
        return torchsave.verify(entry)
    return dcp.verify(entry) if dcp.recognise(entry) else folder.verify(entry)
