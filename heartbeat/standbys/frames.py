"""JSON objects over a stream socket, each behind its length. Between the agent and a standby."""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any

MAX_BYTES = 8 << 20
_LENGTH = Struct("<I")


class FrameError(ValueError):
    """The peer sent what is no frame: too long, no JSON, or no object. The connection is of no more use."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame. Undecodable bytes in environment and arguments (surrogates) survive."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BYTES:
        raise FrameError(f"message of {len(body)} bytes, at most {MAX_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Puts received bytes together again."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take what was received, return the messages that are complete. Raises :class:`FrameError`."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_BYTES:
                raise FrameError(f"frame of {length} bytes, at most {MAX_BYTES} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no JSON: {error}") from None
    if not isinstance(message, dict):
        raise FrameError("not an object")
    return message
