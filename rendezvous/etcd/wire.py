"""What is said to etcd and what it answers, as plain data; :mod:`.client` translates to and from its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from ftlaunch.rendezvous.etcd.keys import KeyRange


@dataclass(frozen=True)
class KeyValue:
    """One key as it stands. ``lease`` is 0 for a key without one."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


@dataclass(frozen=True)
class Absent:
    """Condition: the key does not exist."""

    key: str


@dataclass(frozen=True)
class Exists:
    """Condition: the key exists."""

    key: str


@dataclass(frozen=True)
class CreatedAt:
    """Condition: the key exists and is the same that was created at this revision."""

    key: str
    revision: int


@dataclass(frozen=True)
class ValueIs:
    """Condition: the key exists and has this value."""

    key: str
    value: bytes


@dataclass(frozen=True)
class Put:
    """Write a key."""

    key: str
    value: bytes
    lease: int


@dataclass(frozen=True)
class Get:
    """Read a key or a range."""

    where: str | KeyRange
    limit: int = 0


@dataclass(frozen=True)
class Delete:
    """Delete a key or a range."""

    where: str | KeyRange


Condition = Union[Absent, Exists, CreatedAt, ValueIs]
Operation = Union[Put, Get, Delete]


@dataclass(frozen=True)
class Transaction:
    """If all conditions hold, do ``then``, else ``otherwise``; atomic."""

    conditions: tuple[Condition, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a transaction did. ``found``: the keys of each :class:`Get` of the branch taken, in order."""

    applied: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...] = ()


@dataclass(frozen=True)
class Change:
    """A key was written, or, with ``value`` being ``None``, deleted, at this revision."""

    key: str
    value: KeyValue | None
    revision: int = 0


def existing(answer: Answer, at: int = 0) -> KeyValue | None:
    """The one key of the ``at``-th read, if it exists."""
    if at >= len(answer.found) or not answer.found[at]:
        return None
    return answer.found[at][0]
