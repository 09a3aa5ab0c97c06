"""What nodes write for each other: JSON objects with a version, read with suspicion.

A value that this version cannot read raises :class:`RecordError`; who reads decides whether that matters.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

from ftlaunch.rendezvous.interface import Exclusion

VERSION = 1
MAX_BYTES = 1_000_000
"""etcd refuses requests above 1.5 MiB by default."""

R = TypeVar("R", bound="Record")
T = TypeVar("T")
Count = int
"""At least 1."""
Status = int
"""An exit code, 0 to 255."""
Number = int
"""Not negative, and no more than etcd has for the id of a lease."""


class RecordError(ValueError):
    """A record of the job is not what this version writes."""


@dataclass(frozen=True)
class Record:
    """What all records share: the types of the fields say how they are read."""

    LIMIT: ClassVar[int] = MAX_BYTES

    @classmethod
    def decode(cls: type[R], value: bytes) -> R:
        """Raises :class:`RecordError`."""
        raw = load(value, cls.LIMIT)
        return cls(**{each.name: _READERS[str(each.type)](raw, each.name) for each in fields(cls)})

    def encode(self) -> bytes:
        """Raises :class:`RecordError` when it is larger than it may be or holds what JSON cannot."""
        raw = {"v": VERSION, **{each.name: getattr(self, each.name) for each in fields(self)}}
        try:
            value = json.dumps(raw, separators=(",", ":"), allow_nan=False, default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"cannot be written as JSON: {error}") from None
        if len(value) > self.LIMIT:
            raise RecordError(f"{len(value)} bytes are too many (at most {self.LIMIT})")
        return value


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
class NodeRecord(Record):
    """One living agent. ``asked``: the lowest generation that it wants to be in, ``None`` while it asks for nothing.

    ``settings_digest`` says whether it was started like the others, at the cost of a few bytes.
    """

    node_id: str
    host: str
    pid: int
    address: str
    peer_port: int
    slots: Count
    master_port: int = 0
    order: int | None = None
    asked: int | None = None
    counted: bool = False
    settings_digest: str = ""
    offers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HolderRecord(Record):
    """Which agent has a machine, or leads. ``attempt`` is unique per try: an answer that got lost is recognised."""

    node_id: str
    host: str
    pid: int
    address: str
    peer_port: int
    attempt: str
    settings: Mapping[str, str] = field(default_factory=dict)


class Seat(NamedTuple):
    """One node of a generation; its place in the table is its group rank. A tuple: every node reads all of them."""

    node_id: str
    host: str
    address: str
    slots: int
    peer_port: int


_SEAT_TYPES = [str, str, str, int, int]


@dataclass(frozen=True)
class TableRecord(Record):
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


@dataclass(frozen=True)
class FailureRecord(Record):
    """Who ended a generation, and why."""

    generation: int
    kind: FailureKind
    node_id: str
    host: str
    reason: str
    attempt: str
    counted: bool = True


@dataclass(frozen=True)
class GrowthRecord(Record):
    """``waiting`` nodes wait to be taken into a generation that is smaller than wanted."""

    generation: int
    waiting: int
    reason: str


@dataclass(frozen=True)
class FinishRecord(Record):
    """All ranks of a node succeeded in this generation."""

    node_id: str
    generation: int


@dataclass(frozen=True)
class ClosedRecord(Record):
    """The job is over: what every agent ends with."""

    exit_code: Status
    reason: str
    node_id: str
    host: str
    attempt: str


@dataclass(frozen=True)
class LessonRecord(Record):
    """What spares may import ahead: modules in order, and changes of the environment (``None``: taken away)."""

    names: tuple[str, ...]
    environment: Mapping[str, str | None]


@dataclass(frozen=True)
class ExclusionsRecord(Record):
    """All nodes that are left out of the job. ``revision`` grows with every change."""

    revision: int = 0
    entries: tuple[Exclusion, ...] = ()

    def of(self, node_id: str, host: str) -> Exclusion | None:
        """What keeps a node out, ``None`` when nothing does."""
        return next((one for one in self.entries if one.name in (node_id, host)), None)


def load(value: bytes, limit: int = MAX_BYTES) -> dict[str, Any]:
    """A JSON object of this version. Raises :class:`RecordError`."""
    if len(value) > limit:
        raise RecordError(f"{len(value)} bytes are too many (at most {limit})")
    try:
        raw = json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise RecordError("not JSON") from None
    if not isinstance(raw, dict):
        raise RecordError("not a JSON object")
    if raw.get("v") != VERSION:
        raise RecordError(f"written in version {raw.get('v')!r:.50}, this ftlaunch speaks version {VERSION}")
    return raw


def printable(text: Any) -> Any:
    """What can be printed and sent on: JSON also carries halves of surrogate pairs."""
    return text if not isinstance(text, str) or text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _plain(value: object) -> object:
    if isinstance(value, FailureKind):
        return value.value
    if isinstance(value, Exclusion):
        return asdict(value)
    raise TypeError(f"{value!r:.100} is no JSON")


def _refuse(constant: str) -> float:
    # NaN and Infinity are no JSON, and no number that anybody could reckon with.
    raise ValueError(constant)


def _get(raw: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = raw.get(name)
    # bool is an int to Python, not to us.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RecordError(f"{name} is {value!r:.100}, not a {kind.__name__}")
    return printable(value) if isinstance(value, str) else value


def _reader(kind: type[T]) -> Callable[[Mapping[str, Any], str], T]:
    return lambda raw, name: _get(raw, name, kind)


def _optional(kind: type[T]) -> Callable[[Mapping[str, Any], str], T | None]:
    return lambda raw, name: None if raw.get(name) is None else _get(raw, name, kind)


def _between(low: int, high: int) -> Callable[[Mapping[str, Any], str], int]:
    def read(raw: Mapping[str, Any], name: str) -> int:
        value = _get(raw, name, int)
        if not low <= value < high:
            raise RecordError(f"{name} is {value}")
        return value

    return read


def _failure_kind(raw: Mapping[str, Any], name: str) -> FailureKind:
    try:
        return FailureKind(_get(raw, name, str))
    except ValueError as error:
        raise RecordError(str(error)) from None


def _texts(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(printable(str(item)) for item in _get(raw, name, list))


def _strings(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    return {printable(key): printable(str(value)) for key, value in _get(raw, name, dict).items()}


def _numbers(raw: Mapping[str, Any], name: str) -> dict[str, int]:
    found = _get(raw, name, dict)
    if not all(type(value) is int for value in found.values()):
        raise RecordError(f"{name} is {found!r:.100}, which is not all numbers")
    return {printable(key): value for key, value in found.items()}


def _changes(raw: Mapping[str, Any], name: str) -> dict[str, str | None]:
    found = _get(raw, name, dict).items()
    return {printable(key): None if text is None else printable(str(text)) for key, text in found}


def _exclusions(raw: Mapping[str, Any], name: str) -> tuple[Exclusion, ...]:
    return tuple(_exclusion(item) for item in _get(raw, name, list))


def _exclusion(item: Any) -> Exclusion:
    if not isinstance(item, dict):
        raise RecordError(f"{item!r:.200} is not an exclusion")
    return Exclusion(_get(item, "name", str), _get(item, "reason", str), _get(item, "by", str))


def _seats(raw: Mapping[str, Any], name: str) -> tuple[Seat, ...]:
    return tuple(_seat(item) for item in _get(raw, name, list))


def _seat(item: Any) -> Seat:
    # Compared as a whole: every node reads as many of them as there are nodes.
    if not isinstance(item, list) or list(map(type, item)) != _SEAT_TYPES or item[3] < 1:
        raise RecordError(f"{item!r:.200} is not a seat")
    return Seat._make(item if "".join(item[:3]).isascii() else map(printable, item))


_READERS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "str": _reader(str),
    "int": _reader(int),
    "bool": _reader(bool),
    "int | None": _optional(int),
    "Count": _between(1, 1 << 63),
    "Status": _between(0, 256),
    "Number": _between(0, 1 << 63),
    "FailureKind": _failure_kind,
    "tuple[str, ...]": _texts,
    "tuple[Seat, ...]": _seats,
    "tuple[Exclusion, ...]": _exclusions,
    "Mapping[str, str]": _strings,
    "Mapping[str, str | None]": _changes,
    "Mapping[str, int]": _numbers,
    "Mapping[str, Any]": _reader(dict),
    "Mapping[str, Any] | None": _optional(dict),
}
"""How a field of that type is read from an object: ``reader(object, name)``, which raises :class:`RecordError`."""
