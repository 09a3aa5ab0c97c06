"""Text files that point at the newest checkpoint: Megatron's tracker, DeepSpeed's ``latest``.

Both are written when all ranks have saved. So what is newer than the pointer was not committed, and what the pointer
names should be whole; when it isn't, the pointer is worth nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ftlaunch.launcher.checkpoints.files import Incomplete, read_bounded
from ftlaunch.launcher.checkpoints.megatron import RELEASE
from ftlaunch.launcher.checkpoints.names import step_of

MEGATRON = "latest_checkpointed_iteration.txt"
NAMES = (MEGATRON, "latest", "latest_checkpoint", "latest.txt", "last_checkpoint")
MAX_BYTES = 4096


@dataclass(frozen=True)
class Tracker:
    """What one pointer file says: a step, or the name of an entry."""

    path: str
    text: str
    step: int | None

    def points_at(self, name: str, step: int | None) -> bool:
        """Whether an entry of this name and step is the one meant."""
        target = os.path.basename(self.text.rstrip("/"))
        return name == target or (self.step is not None and step == self.step)


def read(directory: str, name: str) -> Tracker | None:
    """Read one pointer; ``None`` for a directory or a link of that name. Raises :class:`Incomplete` for a bad one."""
    path = os.path.join(directory, name)
    if os.path.islink(path) or os.path.isdir(path):
        return None
    try:
        text = read_bounded(path, MAX_BYTES).decode().strip()
    except UnicodeDecodeError:
        raise Incomplete("a pointer that is not text") from None
    if not text or "\n" in text:
        raise Incomplete("a pointer to nothing: it is empty or has more than one line")
    if name == MEGATRON and text == RELEASE:
        return Tracker(path, text, 0)
    if text.isascii() and text.isdigit():
        return Tracker(path, text, int(text[:19]))
    if name == MEGATRON:
        raise Incomplete(f"a pointer to {text[:60]!r}, which is neither a number nor {RELEASE!r}")
    return Tracker(path, text, step_of(os.path.basename(text.rstrip("/"))))
