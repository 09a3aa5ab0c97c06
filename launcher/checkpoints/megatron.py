"""Megatron's ``iter_0000100`` directories: one directory per model-parallel rank, or a distributed checkpoint.

``latest_checkpointed_iteration.txt`` beside them is written when every rank has saved; :mod:`.trackers` reads it.
"""

from __future__ import annotations

import re

from ftlaunch.launcher.checkpoints import dcp, folder, torchsave
from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, read_json
from ftlaunch.launcher.checkpoints.names import step_of

RELEASE = "release"
_ITERATION = re.compile(r"iter_[0-9]+")
_RANK = re.compile(r"mp_rank_([0-9]{1,6})(?:_[0-9]+)*")
COMMON = "common.pt"
CONFIG = "metadata.json"


def recognise(entry: Entry) -> bool:
    """By the directory's name."""
    return entry.is_dir and (_ITERATION.fullmatch(entry.name) is not None or entry.name == RELEASE)


def verify(entry: Entry) -> Facts:
    """Complete when all files are whole and no tensor rank is missing in the middle. Raises :class:`Incomplete`."""
    step = 0 if entry.name == RELEASE else step_of(entry.name)
    if dcp.recognise(entry) or CONFIG in entry.children:
        return Facts(step, verify_distributed(entry))
    ranks = {int(match.group(1)) for match in map(_RANK.fullmatch, entry.children) if match}
    missing = set(range(max(ranks, default=0) + 1)) - ranks
    if missing:
        raise Incomplete(f"holds no mp_rank_{min(missing):02d}")
    return Facts(step, folder.verify_tree(entry.path, step))


def verify_distributed(entry: Entry) -> frozenset[str]:
    """Check a distributed checkpoint of Megatron core; gives the names of what it has beside the shards."""
    if CONFIG not in entry.children or read_json(entry.child(CONFIG)).get("sharded_backend") != "zarr":
        dcp.verify(entry)
    extra = entry.children & {COMMON, CONFIG}
    if COMMON in extra:
        try:
            torchsave.verify_file(entry.child(COMMON))
        except Incomplete as error:
            raise Incomplete(f"{COMMON}: {error}") from None
    return extra
