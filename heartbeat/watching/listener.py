"""The agent's ear: datagrams in, believable messages out. Nothing that arrives can raise, block, or grow without bound.

Who sent a message is told by the kernel (SCM_CREDENTIALS, unix(7)), never by the message.
"""

from __future__ import annotations

import array
import contextlib
import enum
import os
import socket
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from ftlaunch.heartbeat import wire
from ftlaunch.heartbeat.wire import Message

Accepts = Callable[[int, int, int], bool]
"""``(pid, generation, local rank)``: whether this process may speak for the rank; not asked again for a while."""

_CREDENTIALS = Struct("=iII")
_HEAD = Struct("<2sBBII")
# Room for the credentials and not one descriptor more: what does not fit is never installed in our table (cmsg(3)).
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)
_MAX_BYTES_PER_DRAIN = 256 * 1024
_MAX_REMEMBERED = 1024
_REFUSAL_S = 1.0
_NOTICE_S = 60.0


class Heard(NamedTuple):
    """One message of a rank. ``received_at``: CLOCK_MONOTONIC seconds of the drain that took it in."""

    message: Message
    pid: int
    received_at: float


class Refusal(enum.Enum):
    """Why a datagram was dropped; the value completes "n messages were dropped: …"."""

    FOREIGN = "sent by another user"
    OVERSIZED = "too long"
    DESCRIPTORS = "carried file descriptors"
    MALFORMED = "not in our format"
    GENERATION = "of another generation"
    RANK = "of a rank that is not on this node"
    STRANGER = "not sent by the rank or a child of it"


class Listener:
    """Takes messages from a bound socket with SO_PASSCRED. About 5 µs for a beat, 2 µs for what is dropped unread.

    Register :meth:`fileno` with the loop and call :meth:`drain` when it is readable: what one call leaves makes it
    readable again at once, so a flood cannot keep the loop from its other work.
    """

    def __init__(self, receiver: socket.socket, accepts: Accepts, uid: int | None = None) -> None:
        self.dropped: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        self.heard = 0
        self.overrun = False
        """The last drain was mostly garbage: the queue is flooded, and beats of good ranks may not get in."""
        self._receiver = receiver
        self._accepts = accepts
        self._uid = os.getuid() if uid is None else uid
        self._generation = -1
        self._ranks = 0
        self._trusted: set[tuple[int, int]] = set()
        self._refused: dict[tuple[int, int], float] = {}
        self._untold = 0
        self._noticed: dict[Refusal, tuple[float, int]] = {}
        self._buffer = bytearray(wire.MAX_BYTES + 1)
        self._buffers = [self._buffer]

    def fileno(self) -> int:
        """Descriptor for the event loop."""
        return self._receiver.fileno()

    def expect(self, generation: int, ranks: int) -> None:
        """From now on believe only messages of this generation, with local ranks below ``ranks``."""
        self._generation = generation
        self._ranks = ranks
        self._trusted.clear()
        self._refused.clear()

    def drain(self, now: float, limit: int = 64) -> list[Heard]:
        """Take what has arrived, at most ``limit`` datagrams and 256 kB: under a millisecond of beats.

        Longest for hostile JSON: about 5 ms. Never blocks, never raises.
        """
        found: list[Heard] = []
        refused = taken_bytes = 0
        while limit > 0 and taken_bytes < _MAX_BYTES_PER_DRAIN:
            try:
                size, ancillary, flags, _ = self._receiver.recvmsg_into(
                    self._buffers, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                # Nothing there, or no memory for it just now: the loop will call again.
                break
            limit -= 1
            taken_bytes += size
            judged = self._judge(size, ancillary, flags, now)
            if isinstance(judged, Heard):
                found.append(judged)
            else:
                self.dropped[judged] += 1
                self._untold += 1
                refused += 1
        self.heard += len(found)
        self.overrun = refused >= 16 and refused > len(found)
        return found

    def notices(self, now: float) -> list[str]:
        """Lines to log about what was dropped since they were last given: each reason at most once a minute."""
        if not self._untold:
            return []
        lines = []
        for reason, count in self.dropped.items():
            at, told = self._noticed.get(reason, (-_NOTICE_S, 0))
            if count > told and now - at >= _NOTICE_S:
                self._noticed[reason] = (now, count)
                self._untold -= count - told
                lines.append(f"{count - told} heartbeat message{'s' * (count - told > 1)} dropped: {reason.value}")
        return lines

    def _judge(self, size: int, ancillary: list[tuple[int, int, bytes]], flags: int, now: float) -> Heard | Refusal:
        if len(ancillary) != 1 or flags & socket.MSG_CTRUNC or ancillary[0][1] != socket.SCM_CREDENTIALS:
            _close_passed(ancillary)
            return Refusal.DESCRIPTORS if flags & socket.MSG_CTRUNC or ancillary else Refusal.FOREIGN
        pid, uid, _ = _CREDENTIALS.unpack(ancillary[0][2])
        # A process outside of our PID namespace has pid 0 here.
        if uid != self._uid or pid <= 0:
            return Refusal.FOREIGN
        if flags & socket.MSG_TRUNC:
            return Refusal.OVERSIZED
        if size < wire.HEADER.size:
            return Refusal.MALFORMED
        magic, version, _, generation, rank = _HEAD.unpack_from(self._buffer)
        if magic != wire.MAGIC or version != wire.VERSION:
            return Refusal.MALFORMED
        if generation != self._generation:
            return Refusal.GENERATION
        if rank >= self._ranks:
            return Refusal.RANK
        if (pid, rank) not in self._trusted and not self._may_speak(pid, rank, now):
            return Refusal.STRANGER
        # Only now: whatever JSON costs, it is a rank's own.
        try:
            return Heard(wire.decode(bytes(memoryview(self._buffer)[:size])), pid, now)
        except wire.WireError:
            return Refusal.MALFORMED

    def _may_speak(self, pid: int, rank: int, now: float) -> bool:
        key = (pid, rank)
        # Asked again after a second: the number may be another process by then.
        if now - self._refused.get(key, -_REFUSAL_S) < _REFUSAL_S:
            return False
        if self._accepts(pid, self._generation, rank):
            _make_room(self._trusted)
            self._trusted.add(key)
            return True
        _make_room(self._refused)
        self._refused[key] = now
        return False


def _make_room(remembered: set[tuple[int, int]] | dict[tuple[int, int], float]) -> None:
    if len(remembered) >= _MAX_REMEMBERED:
        remembered.clear()


def _close_passed(ancillary: Iterable[tuple[int, int, bytes]]) -> None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i")
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
