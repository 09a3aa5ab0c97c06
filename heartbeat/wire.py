"""The datagrams between a worker and its agent: one fixed header, then JSON. Standard library only.

Header (little endian): magic ``ft``, version, kind, generation, local rank, sequence number, section serial, step, and
the sender's CLOCK_MONOTONIC in ns. Every message repeats the sender's section serial, so a lost section message is
noticed with the next one that arrives. Nothing is ever unpickled. Who sent it is not in the message: the kernel
says that (SCM_CREDENTIALS, unix(7)).
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
MAGIC = b"ft"
HEADER = struct.Struct("<2sBBIIQIqQ")
MAX_BYTES = 65536
MAX_INFLATED_BYTES = 1 << 20
NO_STEP = -1


class Kind(enum.IntEnum):
    """What a message says."""

    HELLO = 1
    """The worker is up; payload ``pid``, ``phase``: ``start`` (bootstrap), ``script`` (about to run the user's code),
    ``import`` (torch.optim is loaded and hooked), ``optimizer`` (the script has made one) or ``init`` (it called
    ``init()``): steps are to be expected; ``polls`` (the script asks ``should_save()``)."""
    BEAT = 2
    """Progress told by the script. Payload empty, or ``info`` (what the script passed) and/or ``sections`` after a lost
    section message."""
    SECTION = 3
    """The stack of open sections changed; payload ``sections``: list of names, outermost first."""
    LAST_WORDS = 4
    """The worker is about to end by itself; payload as :class:`ftlaunch.heartbeat.watching.lastwords.LastWords`."""
    REQUEST = 5
    """``what``: ``restart`` or ``stop``; ``reason``."""
    CHECKPOINT = 6
    """A checkpoint is complete; payload ``path`` (may be empty), ``source`` (``torch.save``, ``dcp``, ``script``) and
    ``step``: the last one the script told before it was saved, or null."""
    MODULES = 7
    """Installed modules loaded by the first step, in the order in which their imports ended; payload ``names``, and
    ``environment``: what the script changed in its environment until then (``null``: removed); deflated."""
    TICK = 8
    """Progress noticed by a hook, not told by the script: ``step`` is the number of optimizer steps of this process so
    far, not the script's own step. Once the script beats by itself, only in place of beats without a number."""


@dataclass(frozen=True)
class Message:
    """One decoded datagram. ``step`` is ``None`` when the sender does not know its step."""

    kind: Kind
    generation: int
    local_rank: int
    sequence: int
    section_serial: int
    step: int | None
    sent_ns: int
    payload: Mapping[str, Any] = field(default_factory=dict)


class WireError(ValueError):
    """A datagram that is not ours, not this version, too long or malformed. The listener counts and drops it."""


def encode(message: Message) -> bytes:
    """Encode; raises :class:`WireError` when the result would exceed ``MAX_BYTES``."""
    head = HEADER.pack(
        MAGIC,
        VERSION,
        message.kind,
        message.generation,
        message.local_rank,
        message.sequence,
        message.section_serial,
        NO_STEP if message.step is None else message.step,
        message.sent_ns,
    )
    if not message.payload:
        return head
    body = json.dumps(message.payload, separators=(",", ":")).encode()
    if message.kind is Kind.MODULES:
        body = zlib.compress(body)
    if len(head) + len(body) > MAX_BYTES:
        raise WireError(f"message of {len(head) + len(body)} bytes, at most {MAX_BYTES} are allowed")
    return head + body


def decode(data: bytes) -> Message:
    """Decode; raises :class:`WireError` for anything that :func:`encode` would not have produced."""
    if not HEADER.size <= len(data) <= MAX_BYTES:
        raise WireError(f"{len(data)} bytes")
    magic, version, kind, generation, rank, sequence, serial, step, sent_ns = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise WireError(f"magic {magic!r} version {version}")
    try:
        known = Kind(kind)
    except ValueError:
        raise WireError(f"unknown kind {kind}") from None
    payload = _decode_payload(known, data[HEADER.size :])
    return Message(known, generation, rank, sequence, serial, None if step < 0 else step, sent_ns, payload)


def _decode_payload(kind: Kind, body: bytes) -> Mapping[str, Any]:
    if not body:
        return {}
    try:
        if kind is Kind.MODULES:
            inflater = zlib.decompressobj()
            body = inflater.decompress(body, MAX_INFLATED_BYTES)
            if inflater.unconsumed_tail:
                raise WireError(f"more than {MAX_INFLATED_BYTES} bytes inflated")
        payload = json.loads(body)
    except (ValueError, zlib.error, RecursionError) as error:
        raise WireError(f"payload: {error}") from None
    if not isinstance(payload, dict):
        raise WireError("payload is not an object")
    return payload
