"""What we know of the job's keys, decoded: fed by watches, read by decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ftlaunch.rendezvous.common.asking import QuestionRecord
from ftlaunch.rendezvous.common.decide import Roster, View
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureRecord,
    FinishRecord,
    GrowthRecord,
    HolderRecord,
    NodeRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import Node
from ftlaunch.rendezvous.etcd.keys import KeyRange, Keys
from ftlaunch.rendezvous.etcd.watch import Snapshot
from ftlaunch.rendezvous.etcd.wire import Change, KeyValue

_log = logging.getLogger("ftlaunch.rendezvous")

T = TypeVar("T")


class Mirror:
    """A copy of some key ranges. Values that cannot be read count as absent; each is logged once."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._values: dict[str, KeyValue] = {}
        self._decoded: dict[str, tuple[int, object]] = {}
        self._latest: TableRecord | None = None
        self.complete = False
        """Whether everything was read at least once."""

    def apply(self, update: Snapshot | tuple[Change, ...]) -> None:
        """Take in what a watch told."""
        if isinstance(update, Snapshot):
            self._values = {k: v for k, v in self._values.items() if not any(k in r for r in update.ranges)}
            self._values.update({kv.key: kv for kv in update.values})
            self.complete = True
            return
        for change in update:
            if change.value is None:
                self._values.pop(change.key, None)
            else:
                self._values[change.key] = change.value

    def get(self, key: str) -> KeyValue | None:
        """One key as it stands."""
        return self._values.get(key)

    def view(self) -> View:
        """What every agent sees. The latest table is remembered even when its key is gone."""
        for kv in self._below(self._keys.generations):
            table = self._read(kv, TableRecord.decode)
            if table is not None and (self._latest is None or table.generation > self._latest.generation):
                self._latest = table
        failures = (self._read(kv, FailureRecord.decode) for kv in self._below(self._keys.failures))
        return View(
            leader=self._one(self._keys.leader, HolderRecord.decode),
            table=self._latest,
            failures={failure.generation: failure for failure in failures if failure is not None},
            growth=self._one(self._keys.growth, GrowthRecord.decode),
            closed=self._one(self._keys.closed, ClosedRecord.decode),
            excluded=self._one(self._keys.excluded, ExclusionsRecord.decode) or ExclusionsRecord(),
        )

    def questions(self) -> list[QuestionRecord]:
        """What members have asked, with the outcome where there is one already."""
        found = (self._read(kv, QuestionRecord.decode) for kv in self._below(self._keys.asks))
        return [question for question in found if question is not None]

    def roster(self) -> Roster:
        """What only the leader sees."""
        nodes = {}
        for kv in self._below(self._keys.nodes):
            record = self._read(kv, NodeRecord.decode)
            if record is not None:
                nodes[record.node_id] = Node(record, kv.create_revision, kv.lease)
        finished = (self._read(kv, FinishRecord.decode) for kv in self._below(self._keys.finishes))
        return Roster(nodes, {done.node_id: done.generation for done in finished if done is not None})

    def _below(self, keys: KeyRange) -> list[KeyValue]:
        return [kv for key, kv in self._values.items() if key in keys]

    def _one(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        kv = self._values.get(key)
        return None if kv is None else self._read(kv, decode)

    def _read(self, kv: KeyValue, decode: Callable[[bytes], T]) -> T | None:
        """Decode once per revision: the leader looks at all nodes again and again."""
        known = self._decoded.get(kv.key)
        if known is not None and known[0] == kv.mod_revision:
            return known[1]  # type: ignore[return-value]
        try:
            record: T | None = decode(kv.value)
        except RecordError as error:
            _log.warning("ignoring etcd key %s: %s", kv.key, str(error))
            record = None
        self._decoded[kv.key] = (kv.mod_revision, record)
        return record
