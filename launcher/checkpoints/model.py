"""What a scan found and what was chosen: frozen, and small enough to travel through the rendezvous."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OFFER_VERSION = 1
MAX_OFFERED = 20
MAX_OFFERED_SKIPPED = 10
MAX_REASON = 300
_RAW = "raw:"


@dataclass(frozen=True)
class Candidate:
    """One complete checkpoint. ``path`` is absolute; ``step`` is ``None`` when neither name nor content tells it."""

    path: str
    step: int | None
    format: str
    mtime_ns: int = 0
    """When it was last written, by the file server's clock. Only orders candidates without a step."""


@dataclass(frozen=True)
class Skipped:
    """What looked like a checkpoint and is not one, or not a whole one. ``reason`` continues "skipped: "."""

    path: str
    reason: str


@dataclass(frozen=True)
class View:
    """What one node sees in the directory. ``complete`` is newest first."""

    directory: str
    complete: tuple[Candidate, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    error: str | None = None
    """Why the directory could not be looked at as a whole. ``complete`` is then not to be relied on."""
    missing: bool = False
    """The directory is not there (yet): the normal first start. ``error`` is ``None`` then."""

    def as_offer(self) -> dict[str, Any]:
        """The view as JSON, at most :data:`MAX_OFFERED` candidates: some kilobytes, whatever the directory holds."""
        return {
            "v": OFFER_VERSION,
            "directory": _to_json_path(self.directory),
            "complete": [_candidate_to_json(found) for found in self.complete[:MAX_OFFERED]],
            "skipped": [
                [_to_json_path(one.path), _clean(one.reason)[:MAX_REASON]] for one in self.skipped[:MAX_OFFERED_SKIPPED]
            ],
            "error": None if self.error is None else _clean(self.error)[:MAX_REASON],
            "missing": self.missing,
        }

    @classmethod
    def from_offer(cls, offer: object) -> View:
        """Read what :meth:`as_offer` wrote on another node. Raises :class:`ValueError` for anything else."""
        if not isinstance(offer, Mapping) or offer.get("v") != OFFER_VERSION:
            raise ValueError(f"not a checkpoint offer of version {OFFER_VERSION}")
        error = offer.get("error")
        if not (error is None or isinstance(error, str)):
            raise ValueError("checkpoint offer: 'error' is not a text")
        return cls(
            directory=_from_json_path(offer.get("directory")),
            complete=tuple(_candidate_from_json(one) for one in _list(offer, "complete")[:MAX_OFFERED]),
            skipped=tuple(_skipped_from_json(one) for one in _list(offer, "skipped")[:MAX_OFFERED_SKIPPED]),
            error=error,
            missing=offer.get("missing") is True,
        )


@dataclass(frozen=True)
class Choice:
    """What the next generation resumes from; ``path`` is ``None`` for a fresh start."""

    path: str | None
    step: int | None
    reason: str
    """One sentence for the log, names the numbers."""
    paths: tuple[str | None, ...] = field(default=())
    """The path on each node, in the order of the views. They differ only with node-local storage."""
    certain: bool = True
    """``False`` when a node could not look: starting fresh on such a choice could throw away good work."""


def show(path: str) -> str:
    """A path that can be printed and sent anywhere: bytes that are not UTF-8 become ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _to_json_path(path: str) -> str:
    # A real path starts with a slash, so the prefix cannot be mistaken for one.
    try:
        path.encode()
    except UnicodeEncodeError:
        return _RAW + os.fsencode(path).hex()
    return path


def _from_json_path(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("checkpoint offer: a path is not a text")
    path = os.fsdecode(bytes.fromhex(value[len(_RAW) :])) if value.startswith(_RAW) else value
    if not path.startswith("/"):
        raise ValueError(f"checkpoint offer: path {value[:80]!r} is not absolute")
    return path


def _candidate_to_json(found: Candidate) -> list[Any]:
    return [_to_json_path(found.path), found.step, found.format, found.mtime_ns]


def _candidate_from_json(value: object) -> Candidate:
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("checkpoint offer: a candidate is not a list of four")
    path, step, fmt, mtime_ns = value
    if not (step is None or type(step) is int) or not isinstance(fmt, str) or type(mtime_ns) is not int:
        raise ValueError("checkpoint offer: a candidate has fields of the wrong type")
    return Candidate(_from_json_path(path), step, fmt, mtime_ns)


def _skipped_from_json(value: object) -> Skipped:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise ValueError("checkpoint offer: a skipped entry is not a path and a reason")
    return Skipped(_from_json_path(value[0]), value[1])


def _list(offer: Mapping[str, Any], name: str) -> list[Any]:
    value = offer.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"checkpoint offer: {name!r} is not a list")
    return value
