"""The meeting point without a server: its settings, its frames, and the job it holds, without any connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from ftlaunch.rendezvous.common.addresses import is_own_address
from ftlaunch.rendezvous.common.part import first_offer
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    FinishRecord,
    NodeRecord,
    RecordError,
    Seat,
    TableRecord,
)
from ftlaunch.rendezvous.hub.frames import (
    Hello,
    answer_frame,
    frame,
    read_answer,
    read_frame,
    read_wish,
    wish_frame,
)
from ftlaunch.rendezvous.hub.jobstate import Guest, JobState, Spoken
from ftlaunch.rendezvous.hub.settings import HubSettings, Meeting, check, settings_from
from ftlaunch.rendezvous.interface import Exclusion, ExclusionAnswer, ExclusionWish, RendezvousError, SettingsError

C10D = Meeting("c10d", "h", 1, "job", 2, 4)
SETTINGS = HubSettings("h", 1, "job", 2, 2, node_timeout_s=5.0)


def hello(name: str) -> Hello:
    return Hello("job", name, f"host-{name}", 1, "addr", 2, f"machine-{name}", {"nproc": "2"})


def test_settings_follow_torchrun() -> None:
    settings = settings_from(C10D, {"join_timeout": "7", "last_call_timeout": "2", "is_host": "True"}, True)
    assert (settings.join_timeout_s, settings.last_call_s, settings.is_host) == (7, 2, True)
    assert settings.allow_multiple_agents_per_node
    assert settings_from(C10D, {"timeout": "9"}).join_timeout_s == 9
    assert settings_from(C10D, {}).is_host is None
    static = Meeting("static", "h", 1, "job", 2, 2, node_rank=1)
    assert settings_from(static, {}).is_host is False
    assert settings_from(Meeting("static", "h", 1, "job", 2, 2, node_rank=0), {}).is_host is True


@pytest.mark.parametrize("conf", [{"store_type": "file"}, {"is_host": "maybe"}, {"join_timeout": "soon"}])
def test_settings_that_make_no_sense_are_refused(conf: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(conf.values()))):
        settings_from(C10D, conf)
    with pytest.raises(SettingsError, match="HOST:PORT"):
        check(HubSettings("", 1, "job"))
    with pytest.raises(SettingsError, match="--nnodes"):
        check(HubSettings("h", 1, "job", 3, 2))
    with pytest.raises(SettingsError, match="--node-timeout"):
        check(HubSettings("h", 1, "job", fence_margin_s=10.0))


def test_own_addresses_are_recognised() -> None:
    own = os.uname().nodename
    assert all(is_own_address(host) for host in ("localhost", "LOCALHOST", "127.0.0.1", "::1", own, own.upper()))
    # TEST-NET-1 (RFC 5737) is nobody's.
    assert not is_own_address("192.0.2.1")
    assert not is_own_address("does-not-resolve.invalid")
    assert not is_own_address("x" * 64 + ".invalid")


def test_frames_are_lines() -> None:
    async def read(data: bytes) -> list[object]:
        reader = asyncio.StreamReader(limit=64)
        reader.feed_data(data)
        reader.feed_eof()
        return [await read_frame(reader) for _ in range(2)]

    assert asyncio.run(read(frame("ping", b"7") + frame("bye"))) == [("ping", b"7"), ("bye", b"{}")]
    assert asyncio.run(read(b"half a line")) == [None, None]
    assert asyncio.run(read(b"x" * 200 + b"\n"))[0] is None
    assert Hello.decode(hello("a").encode()) == hello("a")
    for value in (b"", b"[]", b"{}", b'{"v":1}', hello("a").encode().replace(b'"pid": 1', b'"pid": "1"')):
        with pytest.raises(RecordError):
            Hello.decode(value)


class FakeHub:
    """Holds a job and remembers what it says."""

    def __init__(self, settings: HubSettings = SETTINGS) -> None:
        self.said: list[Spoken] = []
        self.dropped: list[str] = []
        self.state = JobState(settings, hello("host"), first_offer, self.said.append, self._drop)

    def _drop(self, guest: Guest) -> None:
        self.dropped.append(guest.hello.node_id)

    def arrive(self, name: str, asked: int | None = 0) -> Guest:
        guest = self.state.arrive(hello(name))
        self.ask(guest, asked)
        return guest

    def ask(self, guest: Guest, asked: int | None) -> None:
        record = NodeRecord(guest.hello.node_id, guest.hello.host, 1, "addr", 2, 2, 4711, asked=asked, counted=True)
        self.state.learn_node(guest, record.encode())

    def last(self) -> Spoken:
        return self.said[-1]


def with_hub(scenario: Callable[[FakeHub], None], settings: HubSettings = SETTINGS) -> None:
    async def run() -> None:
        hub = FakeHub(settings)
        scenario(hub)
        hub.state.close()

    asyncio.run(run())


def fail(hub: FakeHub, guest: Guest, generation: int) -> None:
    name = guest.hello.node_id
    record = FailureRecord(generation, FailureKind.FAILED, name, "h", f"{name} failed", "x")
    hub.state.learn_failure(guest, record.encode())


def test_a_job_from_its_first_table_to_its_end() -> None:
    def scenario(hub: FakeHub) -> None:
        a, b = hub.arrive("a"), hub.arrive("b")
        first = hub.last()
        assert isinstance(first, TableRecord)
        assert [seat.node_id for seat in first.seats] == ["a", "b"]
        fail(hub, b, 0)
        fail(hub, a, 0)
        failure = hub.last()
        assert isinstance(failure, FailureRecord)
        assert failure.node_id == "b", "the first to say so wins"
        hub.ask(a, 1)
        hub.ask(b, 1)
        second = hub.last()
        assert isinstance(second, TableRecord)
        assert (second.generation, second.restart_count) == (1, 1)
        fail(hub, b, 0)
        assert hub.last() is second, "a generation that is over does not fail again"
        for guest in (a, b):
            hub.state.learn_finish(guest, FinishRecord(guest.hello.node_id, 1).encode())
        assert hub.last() == ClosedRecord(0, "all 2 nodes finished", "host", "host-host", hub.last().attempt)

    with_hub(scenario)


def test_who_departs_is_lost_to_the_generation() -> None:
    def scenario(hub: FakeHub) -> None:
        hub.arrive("a")
        hub.state.depart(hub.arrive("b"))
        failure = hub.last()
        assert isinstance(failure, FailureRecord)
        assert (failure.kind, failure.node_id) == (FailureKind.LOST, "b")

    with_hub(scenario)


def test_who_is_silent_for_too_long_is_shown_the_door() -> None:
    def scenario(hub: FakeHub) -> None:
        hub.arrive("a")
        hub.arrive("b").heard_at -= 6.0
        hub.state.consider()
        assert hub.dropped == ["b"]
        failure = hub.last()
        assert isinstance(failure, FailureRecord)
        assert failure.node_id == "b"

    with_hub(scenario)


def test_who_was_left_out_is_said_to_all_and_brought_to_a_new_meeting_point() -> None:
    def scenario(hub: FakeHub) -> None:
        a, b = hub.arrive("host"), hub.arrive("b")
        hub.arrive("s")
        assert hub.state.exclude(a, ExclusionWish("host-b", "hot")).effect == "s takes its place"
        record, failure = hub.said[-2:]
        assert record == ExclusionsRecord(1, (Exclusion("host-b", "hot", "host-host"),))
        assert isinstance(failure, FailureRecord)
        assert (failure.kind, failure.node_id, failure.counted) == (FailureKind.ASKED, "b", False)
        hub.ask(a, 1)
        assert hub.last() is failure, "b has not left yet"
        hub.state.depart(b)
        table = hub.last()
        assert isinstance(table, TableRecord)
        assert [seat.node_id for seat in table.seats] == ["host", "s"]
        with pytest.raises(RendezvousError, match="hosts the rendezvous"):
            hub.state.exclude(a, ExclusionWish("host", force=True))

        new = FakeHub()
        new.state.learn_excluded(a, record.encode())
        new.state.learn_excluded(a, ExclusionsRecord(0).encode())
        assert new.said == [record], "what is older says nothing"
        assert new.state.view.excluded == record
        new.state.close()

    with_hub(scenario)


def test_wishes_and_answers_survive_the_wire_and_garbage_is_refused() -> None:
    wish, answer = ExclusionWish("b", "hot", undo=True), ExclusionAnswer("b", "it may join again")
    assert read_wish(wish_frame("x", wish)) == ("x", wish)
    assert read_answer(answer_frame("x", answer)) == ("x", answer)
    attempt, refusal = read_answer(answer_frame("x", RendezvousError("no node b")))
    assert (attempt, str(refusal)) == ("x", "no node b") and isinstance(refusal, RendezvousError)
    for value in (
        b"",
        b"[]",
        b'{"v":1}',
        b'{"v":1,"wish":7,"answer":7}',
        b'{"v":1,"wish":{"a":1},"answer":{"a":1}}',
        b'{"v":1,"wish":{"node":{}},"answer":{"name":1,"effect":"x"}}',
    ):
        for read in (read_wish, read_answer):
            with pytest.raises(RecordError):
                read(value)


def test_a_new_meeting_point_goes_on_from_what_agents_remember() -> None:
    def scenario(hub: FakeHub) -> None:
        seats = tuple(Seat(name, f"host-{name}", "addr", 2, 2) for name in ("a", "b"))
        known = TableRecord(7, "t", seats, "addr", 1, 3)
        a = hub.state.arrive(hello("a"))
        hub.state.learn_table(a, known.encode())
        hub.ask(a, None)
        assert hub.said == [], "b gets time to come back"
        b = hub.arrive("b", None)
        assert hub.said == [], "nobody is disturbed"
        fail(hub, b, 7)
        hub.ask(a, 8)
        hub.ask(b, 8)
        table = hub.last()
        assert isinstance(table, TableRecord)
        assert (table.generation, table.restart_count) == (8, 4)

    with_hub(scenario)
