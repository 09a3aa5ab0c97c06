"""What arrives at the heartbeat socket, and what of it is believed. Real sockets, no other processes."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftlaunch.heartbeat import wire
from ftlaunch.heartbeat.watching.listener import Listener, Refusal
from ftlaunch.heartbeat.wire import Kind, Message

GENERATION = 3


class Line:
    """A listener and a sender connected to it."""

    def __init__(
        self, accepts: Callable[[int, int, int], bool] = lambda pid, generation, rank: True, **more: Any
    ) -> None:
        self.receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.receiver.bind(b"")  # autobind, unix(7)
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.sender.connect(self.receiver.getsockname())
        self.listener = Listener(self.receiver, accepts, **more)
        self.listener.expect(GENERATION, 2)

    def send(self, data: bytes) -> bool:
        try:
            return self.sender.send(data) == len(data)
        except BlockingIOError:
            return False

    def refused(self) -> dict[Refusal, int]:
        return {reason: count for reason, count in self.listener.dropped.items() if count}

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def beat(generation: int = GENERATION, rank: int = 0, sequence: int = 1, **payload: Any) -> bytes:
    return wire.encode(Message(Kind.BEAT, generation, rank, sequence, 0, 5, 1, payload))


def test_a_message_is_heard_with_the_pid_that_the_kernel_vouches_for(line: Line) -> None:
    line.send(beat(info={"loss": 0.5}))
    (heard,) = line.listener.drain(12.5)
    assert (heard.pid, heard.received_at) == (os.getpid(), 12.5)
    assert heard.message.step == 5 and heard.message.payload == {"info": {"loss": 0.5}}
    assert line.listener.drain(13.0) == [] and line.listener.heard == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Refusal.MALFORMED),
        (b"ft", Refusal.MALFORMED),
        (b"x" * 200, Refusal.MALFORMED),
        (beat()[:-1], Refusal.MALFORMED),
        (b"ft\x02" + beat()[3:], Refusal.MALFORMED),  # another version
        (beat()[:3] + b"\xee" + beat()[4:], Refusal.MALFORMED),  # a kind of the future
        (beat() + b"{", Refusal.MALFORMED),
        (beat() + b"[1]", Refusal.MALFORMED),
        (beat() + b"[" * 60000, Refusal.MALFORMED),
        (beat() + b'{"a": "\xff"}', Refusal.MALFORMED),
        (beat(generation=GENERATION - 1), Refusal.GENERATION),
        (beat(generation=0xFFFFFFFF), Refusal.GENERATION),
        (beat(rank=2), Refusal.RANK),
        (beat() + b" " * wire.MAX_BYTES, Refusal.OVERSIZED),
    ],
)
def test_what_is_not_ours_is_counted_and_dropped(line: Line, data: bytes, reason: Refusal) -> None:
    assert line.send(data)
    assert line.listener.drain(1.0) == []
    assert line.refused() == {reason: 1}
    line.send(beat())
    assert len(line.listener.drain(1.0)) == 1, "and the next good message is heard"


def test_a_zip_bomb_costs_one_megabyte_at_most(line: Line) -> None:
    import zlib

    head = bytearray(beat())
    head[3] = Kind.MODULES
    line.send(bytes(head) + zlib.compress(b"[" + b" " * (50 << 20) + b"]"))
    assert line.listener.drain(1.0) == [] and line.refused() == {Refusal.MALFORMED: 1}


def test_before_a_generation_is_expected_nobody_is_believed() -> None:
    made = Line()
    try:
        made.listener.expect(GENERATION + 1, 2)
        made.send(beat())
        assert made.listener.drain(1.0) == [] and made.refused() == {Refusal.GENERATION: 1}
    finally:
        made.close()


def test_another_user_is_foreign_whatever_he_says() -> None:
    made = Line(uid=os.getuid() + 1)
    try:
        made.send(beat())
        assert made.listener.drain(1.0) == [] and made.refused() == {Refusal.FOREIGN: 1}
    finally:
        made.close()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root may send with the credentials of another user")
def test_credentials_of_another_user_and_of_no_process_are_foreign(line: Line) -> None:
    for pid, uid in ((os.getpid(), 65534),):
        credentials = struct.pack("=iII", pid, uid, 0)
        line.sender.sendmsg([beat()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
    assert line.listener.drain(1.0) == [] and line.refused() == {Refusal.FOREIGN: 1}


@pytest.mark.parametrize("count", [1, 3, 250])
def test_descriptors_sent_along_never_stay_open(line: Line, count: int) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    passed = array.array("i", [0] * count)
    line.sender.sendmsg([beat()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    assert line.listener.drain(1.0) == []
    assert line.refused() == {Refusal.DESCRIPTORS: 1}
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_whether_a_process_may_speak_is_asked_once_a_generation() -> None:
    asked = []

    def accepts(pid: int, generation: int, rank: int) -> bool:
        asked.append((pid, generation, rank))
        return rank == 0

    made = Line(accepts)
    try:
        for _ in range(5):
            made.send(beat(rank=0))
            made.send(beat(rank=1))
            assert len(made.listener.drain(1.0)) == 1
        assert asked == [(os.getpid(), GENERATION, 0), (os.getpid(), GENERATION, 1)]
        assert made.refused() == {Refusal.STRANGER: 5}
        # A refusal is asked again after a second: the pid may be another process by then.
        made.send(beat(rank=1))
        made.listener.drain(2.5)
        assert len(asked) == 3
        made.listener.expect(GENERATION, 2)
        made.send(beat(rank=0))
        made.listener.drain(2.5)
        assert len(asked) == 4
    finally:
        made.close()


def test_one_drain_takes_no_more_than_its_limit_and_no_more_than_so_many_bytes(line: Line) -> None:
    sent = 0
    while line.send(beat(sequence=sent + 1)):
        sent += 1
    assert len(line.listener.drain(1.0, limit=3)) == 3
    assert len(line.listener.drain(1.0)) == sent - 3
    large = beat() + b'{"info": "' + b"x" * 60000 + b'"}'
    sent = 0
    while sent < 10 and line.send(large):
        sent += 1
    assert len(line.listener.drain(1.0)) <= 5


def test_each_reason_is_told_at_most_once_a_minute(line: Line) -> None:
    for now, expected in [(0.0, ["2 heartbeat messages"]), (30.0, []), (59.0, []), (61.0, ["6 heartbeat messages"])]:
        line.send(beat(rank=7))
        line.send(beat(rank=7))
        line.listener.drain(now)
        told = line.listener.notices(now)
        assert [text.split(" dropped")[0] for text in told] == expected
        assert all("rank that is not on this node" in text for text in told)
    line.send(b"garbage")
    line.listener.drain(62.0)
    assert line.listener.notices(62.0) == ["1 heartbeat message dropped: not in our format"]
    assert line.listener.notices(500.0) == []


def test_a_flood_is_recognised_and_leaves_room_for_the_loop(line: Line) -> None:
    """Garbage at full speed, refilled after every drain: each drain ends, each good message that got in is heard."""
    heard = 0
    for turn in range(300):
        line.send(beat(sequence=turn + 1))
        while line.send(os.urandom(turn % 300)):
            pass
        heard += len(line.listener.drain(float(turn)))
        line.listener.drain(float(turn), limit=1000)
    assert heard == 300
    assert sum(line.refused().values()) > 300
    before = line.listener.dropped[Refusal.MALFORMED]
    # With a longer queue (net.unix.max_dgram_qlen) one drain sees a flood as such.
    while line.listener.dropped[Refusal.MALFORMED] < before + 16:
        line.send(b"garbage")
        line.listener.drain(1.0)
    assert line.listener.overrun is (line.listener.dropped[Refusal.MALFORMED] - before >= 1000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_any_bytes_are_survived(line: Line, packets: list[bytes]) -> None:
    for data in packets:
        line.send(data)
    assert line.listener.drain(1.0) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    position=st.integers(0, 80),
    value=st.integers(0, 255),
    tail=st.binary(max_size=40),
)
def test_a_message_with_any_byte_changed_is_survived(line: Line, position: int, value: int, tail: bytes) -> None:
    data = bytearray(beat(info={"loss": 0.25, "note": "text"}, sections=["a"]))
    data[position % len(data)] = value
    line.send(bytes(data) + tail)
    for heard in line.listener.drain(1.0):
        assert heard.message.generation == GENERATION and heard.message.local_rank < 2


@given(st.binary(max_size=4), st.binary(max_size=2000))
def test_decoding_never_raises_anything_but_its_own_error(head: bytes, body: bytes) -> None:
    for data in (head + body, beat() + body, bytes(beat()[:3]) + bytes([Kind.MODULES]) + beat()[4:] + body):
        try:
            message = wire.decode(data)
        except wire.WireError:
            continue
        assert isinstance(message.payload, dict)
