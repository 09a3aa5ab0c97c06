"""Values in etcd: written, read back, and read with suspicion; the mirror that holds them; the keys they stand in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftlaunch.rendezvous.common.records import (
    MAX_BYTES,
    ClosedRecord,
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
from ftlaunch.rendezvous.etcd.keys import KeyRange, Keys, below
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.watch import Snapshot
from ftlaunch.rendezvous.etcd.wire import Change, KeyValue

KEYS = Keys.of_job("job")
NODE = NodeRecord("n1", "host", 42, "10.0.0.1", 5, 8, 29500, None, 3, True, "d1", {"checkpoints": [1, 2]})
TABLE = TableRecord(
    3, "t", (Seat("n1", "host", "10.0.0.1", 8, 5),), "10.0.0.1", 1, 2, {"a": 1}, {"nproc": "8"}, {"n2": 3}
)
RECORDS: list[Record] = [
    NODE,
    HolderRecord("n1", "host", 42, "10.0.0.1", 5, "attempt", {"nproc": "8"}),
    TABLE,
    FailureRecord(3, FailureKind.LOST, "n1", "host", "gone", "attempt", False),
    GrowthRecord(3, 2, "two wait"),
    FinishRecord("n1", 3),
    ClosedRecord(76, "no progress", "n1", "host", "attempt"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_survive_the_journey(record: Record) -> None:
    assert type(record).decode(record.encode()) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_field_is_checked(record: Record) -> None:
    raw: dict[str, Any] = json.loads(record.encode())
    for name in raw:
        damaged = {**raw, name: object.__name__ if not isinstance(raw[name], str) else 17}
        with pytest.raises(RecordError):
            type(record).decode(json.dumps(damaged).encode())


@pytest.mark.parametrize("value", [b"", b"\xff\x00", b"[]", b"7", b"{}", b'{"v":2}', b'{"v":1}', b"nonsense"])
def test_garbage_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        NodeRecord.decode(value)


def test_a_foreign_version_is_named() -> None:
    with pytest.raises(RecordError, match="version 2"):
        NodeRecord.decode(b'{"v":2}')


def test_what_does_not_fit_into_etcd_is_refused_before_it_is_sent() -> None:
    with pytest.raises(RecordError, match="too many"):
        NodeRecord("n", "h", 1, "a", 1, 1, offers={"list": "x" * MAX_BYTES}).encode()
    with pytest.raises(RecordError, match="JSON"):
        NodeRecord("n", "h", 1, "a", 1, 1, offers={"set": {1}}).encode()


def test_a_table_of_ten_thousand_nodes_fits() -> None:
    seats = tuple(
        Seat(f"some-host-name-{n:05d}-0123456789ab", f"some-host-name-{n:05d}", "10.123.100.200", 8, 54321)
        for n in range(10_000)
    )
    assert len(TableRecord(1, "t", seats, "10.0.0.1", 1, 0).encode()) < MAX_BYTES + 100_000


def test_job_ids_cannot_reach_into_other_jobs() -> None:
    prefixes = {Keys.of_job(job).prefix for job in ("a", "a/b", "a%2Fb", "..", "a ", "A", "")}
    assert len(prefixes) == 7
    assert all(prefix.count("/") == 3 for prefix in prefixes)
    assert "/" not in KEYS.node("a/b").removeprefix(KEYS.nodes.start)


def test_what_all_watch_holds_no_key_that_each_node_writes() -> None:
    public, private = KEYS.public, KEYS.private
    everybodys = [KEYS.node("n"), KEYS.machine("m"), KEYS.finish("n")]
    common = [KEYS.leader, KEYS.growth, KEYS.closed, KEYS.failure(3), KEYS.generation(3)]
    assert not [key for key in everybodys if any(key in keys for keys in public)]
    assert all(any(key in keys for keys in public) for key in common)
    assert all(any(key in keys for keys in private) for key in (KEYS.node("n"), KEYS.finish("n")))
    assert KEYS.generation(9) < KEYS.generation(10)


def test_the_job_lease_follows_from_the_job() -> None:
    leases = {Keys.of_job(str(n)).job_lease for n in range(1000)}
    assert len(leases) == 1000
    assert all(0 < lease < 2**63 for lease in leases)
    assert Keys.of_job("7").job_lease in leases


def test_ranges_end_where_the_folder_ends() -> None:
    assert below("/a/") == KeyRange("/a/", "/a0")
    assert "/a/x" in below("/a/")
    assert "/a0" not in below("/a/")


def kv(key: str, record: Record | bytes, revision: int = 1) -> KeyValue:
    value = record if isinstance(record, bytes) else record.encode()
    return KeyValue(key, value, revision, revision, 0)


def test_the_mirror_follows_snapshot_and_changes() -> None:
    mirror = Mirror(KEYS)
    assert not mirror.complete
    leader = HolderRecord("n1", "host", 42, "a", 5, "x")
    mirror.apply(Snapshot(KEYS.public, (kv(KEYS.leader, leader), kv(KEYS.generation(3), TABLE)), 5))
    assert mirror.complete
    assert mirror.view().leader == leader
    assert mirror.view().table == TABLE
    failure = FailureRecord(3, FailureKind.FAILED, "n1", "host", "boom", "x")
    mirror.apply((Change(KEYS.failure(3), kv(KEYS.failure(3), failure)), Change(KEYS.leader, None)))
    assert mirror.view().failure == failure
    assert mirror.view().leader is None
    mirror.apply(Snapshot(KEYS.public, (), 9))
    assert mirror.view().failure is None


def test_the_mirror_remembers_the_latest_table_when_its_key_is_gone() -> None:
    mirror = Mirror(KEYS)
    mirror.apply((Change(KEYS.generation(3), kv(KEYS.generation(3), TABLE)),))
    assert mirror.view().table == TABLE
    mirror.apply(Snapshot(KEYS.public, (), 9))
    assert mirror.view().table == TABLE


def test_the_mirror_ignores_what_it_cannot_read(caplog: pytest.LogCaptureFixture) -> None:
    mirror = Mirror(KEYS)
    values = (
        kv(KEYS.leader, b"junk"),
        kv(KEYS.node("n1"), NODE),
        kv(KEYS.node("n2"), b"\xff"),
        kv(KEYS.finish("x"), b"{}"),
    )
    mirror.apply(Snapshot((*KEYS.public, *KEYS.private), values, 5))
    for _ in range(3):
        assert mirror.view().leader is None
        assert set(mirror.roster().nodes) == {"n1"}
        assert mirror.roster().finished == {}
    assert len([r for r in caplog.records if "ignoring" in r.message]) == 3
