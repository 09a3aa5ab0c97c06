"""Whatever stands in etcd or comes over the wire: it is refused as what it is, or it can be used without harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.rendezvous.common.decide import Limits, Standing, Timing, follow, lead
from ftlaunch.rendezvous.common.records import (
    MAX_BYTES,
    VERSION,
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    FinishRecord,
    GrowthRecord,
    HolderRecord,
    NodeRecord,
    Record,
    RecordError,
    Seat,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import difference
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.wire import Change, KeyValue
from ftlaunch.rendezvous.hub.frames import LINE_LIMIT, Hello, read_frame
from ftlaunch.rendezvous.interface import Exclusion

KEYS = Keys.of_job("job")
RECORDS: dict[str, Record] = {
    KEYS.node("a"): NodeRecord("a", "h", 1, "addr", 7, 2, order=0, asked=3, offers={"x": [1]}),
    KEYS.leader: HolderRecord("a", "h", 1, "addr", 7, "x", {"nproc": "2"}),
    KEYS.generation(3): TableRecord(3, "t", (Seat("a", "h", "addr", 2, 7),), "addr", 1, 0, absent={"b": 1}),
    KEYS.failure(3): FailureRecord(3, FailureKind.FAILED, "b", "h", "boom", "f"),
    KEYS.growth: GrowthRecord(3, 2, "two wait"),
    KEYS.finish("a"): FinishRecord("a", 3),
    KEYS.excluded: ExclusionsRecord(1, (Exclusion("z", "hot", "h"),)),
    KEYS.closed: ClosedRecord(76, "over", "a", "h", "c"),
}
HELLO = Hello("job", "a", "h", 1, "addr", 7, "m", {"nproc": "2"})
ODD: list[Any] = [None, True, "", "\ud800", "\0", "x" * 100_000, -1, 0, 2**31, 2**63, 10**30, 1.5, float("nan")]
ODD += [[], [[]], [["a", "h", "addr", 10**30, -1]], [["\ud800", "h", "addr", 1, 1]], {}, {"\ud800": {}}, {"": [{}]}]
ANYTHING = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GARBAGE = [
    b"",
    b"\xff" * 10,
    b"[" * 100_000,
    b'{"v":' + b"[" * 100_000,
    b'{"v":1e999}',
    b'{"v":' + b"9" * 10_000 + b"}",
    json.dumps({"v": VERSION + 1, "node_id": "a"}).encode(),
    json.dumps({"v": VERSION, "node_id": "x" * MAX_BYTES}).encode(),
]


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("kind", [*{type(record): 0 for record in RECORDS.values()}, Hello])
def test_garbage_and_other_versions_are_refused(kind: Any, value: bytes) -> None:
    with pytest.raises(RecordError):
        kind.decode(value)


@pytest.mark.parametrize("key", sorted(RECORDS))
def test_record_with_one_odd_field_is_refused_or_does_no_harm(key: str) -> None:
    shape = json.loads(RECORDS[key].encode())
    for name in shape:
        for odd in ODD:
            use(key, {**shape, name: odd})


@given(key=st.sampled_from(sorted(RECORDS)), data=st.data())
def test_record_with_anything_in_one_field_is_refused_or_does_no_harm(key: str, data: st.DataObject) -> None:
    shape = json.loads(RECORDS[key].encode())
    use(key, {**shape, data.draw(st.sampled_from(sorted(shape))): data.draw(ANYTHING)})


def use(key: str, shape: dict[str, Any]) -> None:
    """All that an agent and a leader do with what they read: one value as it is, the others as they should be."""
    values = {name: record.encode() for name, record in RECORDS.items() if name != KEYS.closed or key == KEYS.closed}
    values[key] = json.dumps(shape).encode()
    mirror = Mirror(KEYS)
    mirror.apply(tuple(Change(name, KeyValue(name, value, 1, 1, 0)) for name, value in values.items()))
    view, roster = mirror.view(), mirror.roster()
    lead(view, roster, Limits(1, 4), Timing(0.0, 0.0), 100.0).reason.encode()
    for standing in (
        Standing("a", "run", 4, asked=0),
        Standing("a", "run", 4, seated=3),
        Standing("c", "run", 4, asked=0),
    ):
        for event in follow(view, standing)[1]:
            assert getattr(event, "exit_code", 0) in range(256), "no process can end with it"
            str(getattr(event, "reason", "")).encode()
    if view.leader is not None:
        difference(view.leader.settings, {}, "me", "them")
    for record in (view.leader, view.table, view.growth, view.closed, *view.failures.values()):
        if record is not None:
            with contextlib.suppress(RecordError):
                record.encode()
    for name in roster.nodes:
        KEYS.node(name)


def test_hello_with_one_odd_field_is_refused_or_understood() -> None:
    shape = json.loads(HELLO.encode())
    for name in shape:
        for odd in ODD:
            with contextlib.suppress(RecordError):
                hello = Hello.decode(json.dumps({**shape, name: odd}).encode())
                (hello.name + hello.node_id + hello.job_id + hello.address + str(hello.settings)).encode()
                difference(hello.settings, HELLO.settings, hello.name, HELLO.name)


@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"\n", b"x" * (LINE_LIMIT + 1)]), max_size=6))
def test_any_bytes_are_frames_or_the_end(chunks: list[bytes]) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        while (got := await read_frame(reader)) is not None:
            assert "\n" not in got[0] and b"\n" not in got[1]

    asyncio.run(scenario())
