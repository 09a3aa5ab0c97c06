"""What stands in the keys: JSON objects with a version, read with suspicion.

A value that this version cannot read raises :class:`RecordError`; who reads decides whether that matters.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from ftlaunch.rendezvous.interface import Exclusion

VERSION = 1
MAX_BYTES = 1_000_000
"""etcd refuses requests above 1.5 MiB by default."""

T = TypeVar("T")


class RecordError(ValueError):
    """A value in the job's key space is not what this version writes."""


class FailureKind(enum.Enum):
    """Why a generation ended."""

    FAILED = "failed"
    """A node's own ranks failed."""
    LOST = "lost"
    """A node vanished: its lease ended, or its process is proven gone."""
    LEFT = "left"
    """A node went away in good order."""
    ASKED = "asked"
    """A node asked for a new generation: growth, or a restart on request."""


@dataclass(frozen=True)
class NodeRecord:
    """One living agent. ``asked``: the lowest generation that it wants to be in, ``None`` while it asks for nothing.

    ``settings_digest`` says whether it was started like the others, at the cost of a few bytes.
    """

    node_id: str
    host: str
    pid: int
    address: str
    peer_port: int
    slots: int
    master_port: int = 0
    order: int | None = None
    asked: int | None = None
    counted: bool = False
    settings_digest: str = ""
    offers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> NodeRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        return cls(
            node_id=_get(raw, "node_id", str),
            host=_get(raw, "host", str),
            pid=_get(raw, "pid", int),
            address=_get(raw, "address", str),
            peer_port=_get(raw, "peer_port", int),
            slots=_positive(raw, "slots"),
            master_port=_get(raw, "master_port", int),
            order=_optional(raw, "order", int),
            asked=_optional(raw, "asked", int),
            counted=_get(raw, "counted", bool),
            settings_digest=_get(raw, "settings_digest", str),
            offers=_get(raw, "offers", dict),
        )


@dataclass(frozen=True)
class HolderRecord:
    """Which agent has a machine, or leads. ``attempt`` is unique per try: an answer that got lost is recognised."""

    node_id: str
    host: str
    pid: int
    address: str
    peer_port: int
    attempt: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> HolderRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        return cls(
            node_id=_get(raw, "node_id", str),
            host=_get(raw, "host", str),
            pid=_get(raw, "pid", int),
            address=_get(raw, "address", str),
            peer_port=_get(raw, "peer_port", int),
            attempt=_get(raw, "attempt", str),
            settings=_strings(raw, "settings"),
        )


class Seat(NamedTuple):
    """One node of a generation; its place in the table is its group rank. A tuple: every node reads all of them."""

    node_id: str
    host: str
    address: str
    slots: int
    peer_port: int


_SEAT_TYPES = [str, str, str, int, int]


@dataclass(frozen=True)
class TableRecord:
    """One agreed generation.

    ``absent`` maps nodes that lived, but had not asked for this or an earlier generation in time, to the generation
    that began without them: what they had asked for before says nothing any more.
    """

    generation: int
    attempt: str
    seats: tuple[Seat, ...]
    master_address: str
    master_port: int
    restart_count: int
    shared: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, int] = field(default_factory=dict)

    def rank_of(self, node_id: str) -> int | None:
        """The group rank of a node, ``None`` for one that is not seated."""
        return self._ranks.get(node_id)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return {seat.node_id: rank for rank, seat in enumerate(self.seats)}

    @classmethod
    def decode(cls, value: bytes) -> TableRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        return cls(
            generation=_get(raw, "generation", int),
            attempt=_get(raw, "attempt", str),
            seats=tuple(_seat(item) for item in _get(raw, "seats", list)),
            master_address=_get(raw, "master_address", str),
            master_port=_get(raw, "master_port", int),
            restart_count=_get(raw, "restart_count", int),
            shared=_get(raw, "shared", dict),
            settings=_strings(raw, "settings"),
            absent=_get(raw, "absent", dict),
        )


@dataclass(frozen=True)
class FailureRecord:
    """Who ended a generation, and why."""

    generation: int
    kind: FailureKind
    node_id: str
    host: str
    reason: str
    attempt: str
    counted: bool = True

    @classmethod
    def decode(cls, value: bytes) -> FailureRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        try:
            kind = FailureKind(_get(raw, "kind", str))
        except ValueError as error:
            raise RecordError(str(error)) from None
        return cls(
            generation=_get(raw, "generation", int),
            kind=kind,
            node_id=_get(raw, "node_id", str),
            host=_get(raw, "host", str),
            reason=_get(raw, "reason", str),
            attempt=_get(raw, "attempt", str),
            counted=_get(raw, "counted", bool),
        )


@dataclass(frozen=True)
class GrowthRecord:
    """``waiting`` nodes wait to be taken into a generation that is smaller than wanted."""

    generation: int
    waiting: int
    reason: str

    @classmethod
    def decode(cls, value: bytes) -> GrowthRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        return cls(_get(raw, "generation", int), _get(raw, "waiting", int), _get(raw, "reason", str))


@dataclass(frozen=True)
class FinishRecord:
    """All ranks of a node succeeded in this generation."""

    node_id: str
    generation: int

    @classmethod
    def decode(cls, value: bytes) -> FinishRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        return cls(_get(raw, "node_id", str), _get(raw, "generation", int))


@dataclass(frozen=True)
class ClosedRecord:
    """The job is over: what every agent ends with."""

    exit_code: int
    reason: str
    node_id: str
    host: str
    attempt: str

    @classmethod
    def decode(cls, value: bytes) -> ClosedRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        exit_code = _get(raw, "exit_code", int)
        if exit_code not in range(256):
            raise RecordError(f"exit_code is {exit_code}")
        return cls(
            exit_code=exit_code,
            reason=_get(raw, "reason", str),
            node_id=_get(raw, "node_id", str),
            host=_get(raw, "host", str),
            attempt=_get(raw, "attempt", str),
        )


@dataclass(frozen=True)
class LessonRecord:
    """What spares may import ahead: modules in order, and changes of the environment (``None``: taken away)."""

    names: tuple[str, ...]
    environment: Mapping[str, str | None]

    @classmethod
    def decode(cls, value: bytes) -> LessonRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        environment = _get(raw, "environment", dict)
        return cls(
            tuple(printable(str(name)) for name in _get(raw, "names", list)),
            {printable(key): None if text is None else printable(str(text)) for key, text in environment.items()},
        )


@dataclass(frozen=True)
class ExclusionsRecord:
    """All nodes that are left out of the job. ``revision`` grows with every change."""

    revision: int = 0
    entries: tuple[Exclusion, ...] = ()

    def of(self, node_id: str, host: str) -> Exclusion | None:
        """What keeps a node out, ``None`` when nothing does."""
        return next((one for one in self.entries if one.name in (node_id, host)), None)

    @classmethod
    def decode(cls, value: bytes) -> ExclusionsRecord:
        """Raises :class:`RecordError`."""
        raw = load(value)
        return cls(_get(raw, "revision", int), tuple(_exclusion(item) for item in _get(raw, "entries", list)))


AnyRecord = (
    NodeRecord
    | HolderRecord
    | TableRecord
    | FailureRecord
    | GrowthRecord
    | FinishRecord
    | ClosedRecord
    | LessonRecord
    | ExclusionsRecord
)


def encode(record: AnyRecord) -> bytes:
    """Raises :class:`RecordError` when the record is too big for etcd or holds what JSON cannot."""
    raw: dict[str, Any] = {"v": VERSION, **{f.name: getattr(record, f.name) for f in fields(record)}}
    if isinstance(record, TableRecord):
        raw["seats"] = [list(seat) for seat in record.seats]
    elif isinstance(record, FailureRecord):
        raw["kind"] = record.kind.value
    elif isinstance(record, ExclusionsRecord):
        raw["entries"] = [asdict(one) for one in record.entries]
    try:
        value = json.dumps(raw, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise RecordError(f"cannot be written as JSON: {error}") from None
    if len(value) > MAX_BYTES:
        raise RecordError(f"{len(value)} bytes are too many for one etcd key (at most {MAX_BYTES})")
    return value


def load(value: bytes) -> dict[str, Any]:
    """A JSON object of this version. Raises :class:`RecordError`."""
    try:
        raw = json.loads(value)
    except (ValueError, RecursionError):
        raise RecordError("not JSON") from None
    if not isinstance(raw, dict):
        raise RecordError("not a JSON object")
    if raw.get("v") != VERSION:
        raise RecordError(f"written in version {raw.get('v')!r:.50}, this ftlaunch speaks version {VERSION}")
    return raw


def _get(raw: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = raw.get(name)
    # bool is an int to Python, not to us.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RecordError(f"{name} is {value!r:.100}, not a {kind.__name__}")
    return printable(value) if isinstance(value, str) else value


def printable(text: Any) -> Any:
    """What can be printed and sent on: JSON also carries halves of surrogate pairs."""
    return text if not isinstance(text, str) or text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _optional(raw: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if raw.get(name) is None else _get(raw, name, kind)


def _positive(raw: Mapping[str, Any], name: str) -> int:
    value = _get(raw, name, int)
    if value < 1:
        raise RecordError(f"{name} is {value}")
    return value


def _strings(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    return {printable(key): printable(str(value)) for key, value in _get(raw, name, dict).items()}


def _exclusion(item: Any) -> Exclusion:
    if not isinstance(item, dict):
        raise RecordError(f"{item!r:.200} is not an exclusion")
    return Exclusion(_get(item, "name", str), _get(item, "reason", str), _get(item, "by", str))


def _seat(item: Any) -> Seat:
    # Compared as a whole: every node reads as many of them as there are nodes.
    if not isinstance(item, list) or list(map(type, item)) != _SEAT_TYPES or item[3] < 1:
        raise RecordError(f"{item!r:.200} is not a seat")
    return Seat._make(item if "".join(item[:3]).isascii() else map(printable, item))
