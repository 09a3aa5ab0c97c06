"""Writing the keys that outlive single agents: failures, rank tables, finish marks, the end of the job.

All are created by compare-and-swap, hang on the job lease, and carry a unique attempt, so that a write which was
applied although its answer was lost is recognised when it is tried again. Each function raises
:class:`~.errors.EtcdError`.
"""

from __future__ import annotations

import contextlib

from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    FinishRecord,
    GrowthRecord,
    HolderRecord,
    LessonRecord,
    NodeRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import SUSPECT_WINDOW
from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.election import Mandate
from ftlaunch.rendezvous.etcd.errors import LeaseExists, LeaseGone
from ftlaunch.rendezvous.etcd.keys import KeyRange, Keys
from ftlaunch.rendezvous.etcd.wire import (
    Absent,
    Answer,
    Condition,
    CreatedAt,
    Delete,
    Exists,
    Get,
    KeyValue,
    Operation,
    Put,
    Transaction,
    ValueIs,
    existing,
)


class JobKeys:
    """The keys of one job, as one agent writes them."""

    def __init__(self, client: EtcdClient, keys: Keys, state_ttl_s: float) -> None:
        self._client = client
        self._keys = keys
        self._ttl_s = max(2, round(state_ttl_s))

    async def fail(self, failure: FailureRecord) -> bool:
        """Put a failure on record; whether it was the first of its generation."""
        key = self._keys.failure(failure.generation)
        conditions: tuple[Condition, ...] = (Absent(key), Absent(self._keys.closed))
        if failure.kind is FailureKind.LOST:
            # Whoever finished is not missed; who says of itself that it failed after all is believed.
            conditions = (*conditions, Absent(self._keys.finish(failure.node_id)))
        answer = await self._write(conditions, (Put(key, failure.encode(), self._keys.job_lease),), (Get(key),))
        found = existing(answer)
        return answer.applied or (found is not None and _attempt_of(found.value) == failure.attempt)

    async def publish(self, table: TableRecord, mandate: Mandate) -> bool:
        """Write the table of the next generation and drop what is older; ``False`` when we do not lead any more."""
        key = self._keys.generation(table.generation)
        # Who failed lately is remembered a while: a host that fails again and again is passed over.
        oldest = max(0, table.generation - SUSPECT_WINDOW)
        then: tuple[Operation, ...] = (
            Put(key, table.encode(), self._keys.job_lease),
            Delete(KeyRange(self._keys.generations.start, key)),
            Delete(KeyRange(self._keys.failures.start, self._keys.failure(oldest))),
            Delete(self._keys.finishes),
            Delete(self._keys.growth),
        )
        conditions = (Absent(key), mandate.condition, Absent(self._keys.closed))
        answer = await self._write(conditions, then if table.generation > 0 else (then[0],), (Get(key),))
        found = existing(answer)
        return answer.applied or (found is not None and _attempt_of(found.value) == table.attempt)

    async def teach(self, lesson: LessonRecord) -> None:
        """Leave word for spares."""
        put = Put(self._keys.modules.start, lesson.encode(), self._keys.job_lease)
        await self._write((Absent(self._keys.closed),), (put,))

    async def grow(self, growth: GrowthRecord, mandate: Mandate) -> None:
        """Tell the members that nodes wait."""
        put = Put(self._keys.growth, growth.encode(), mandate.lease)
        await self._client.transact(Transaction((mandate.condition,), (put,)))

    async def finish(self, done: FinishRecord) -> None:
        """Mark this node as finished, as long as the generation is the latest; the next one deletes all marks."""
        put = Put(self._keys.finish(done.node_id), done.encode(), self._keys.job_lease)
        conditions = (Exists(self._keys.generation(done.generation)), Absent(self._keys.closed))
        await self._write(conditions, (put,))

    async def exclude(self, record: ExclusionsRecord, former: KeyValue | None) -> bool:
        """Say which nodes are left out; ``False`` when somebody else has changed that since ``former`` was read."""
        key, value = self._keys.excluded, record.encode()
        unchanged = Absent(key) if former is None else ValueIs(key, former.value)
        conditions = (unchanged, Absent(self._keys.closed))
        answer = await self._write(conditions, (Put(key, value, self._keys.job_lease),), (Get(key),))
        found = existing(answer)
        return answer.applied or (found is not None and found.value == value)

    async def close(self, closed: ClosedRecord, tombstone_ttl_s: float) -> ClosedRecord:
        """End the job for all and delete its other keys; returns what the first to say so said."""
        lease, _ = await self._client.grant(max(2, round(tombstone_ttl_s)))
        then = (
            Put(self._keys.closed, closed.encode(), lease),
            Delete(self._keys.generations),
            Delete(self._keys.failures),
            Delete(self._keys.finishes),
            Delete(self._keys.growth),
            Delete(self._keys.modules),
            Delete(self._keys.excluded),
        )
        answer = await self._client.transact(Transaction((Absent(self._keys.closed),), then, (Get(self._keys.closed),)))
        if answer.applied:
            return closed
        await self._client.revoke(lease)
        found = existing(answer)
        return closed if found is None else ClosedRecord.decode(found.value)

    async def tidy(self) -> None:
        """When no agent is left: delete all but the last table, which goes on telling the restart count for a while."""
        answer = await self._client.transact(Transaction(then=(Get(self._keys.nodes, limit=1),)))
        if existing(answer) is None:
            keys = self._keys
            then = tuple(Delete(where) for where in (keys.finishes, keys.failures, keys.growth, keys.modules))
            await self._client.transact(Transaction((Absent(self._keys.leader),), then))

    async def ensure_lease(self) -> None:
        """Grant the job lease unless somebody did."""
        with contextlib.suppress(LeaseExists):
            await self._client.grant(self._ttl_s, self._keys.job_lease)

    async def _write(
        self, conditions: tuple[Condition, ...], then: tuple[Operation, ...], otherwise: tuple[Operation, ...] = ()
    ) -> Answer:
        transaction = Transaction(conditions, then, otherwise)
        try:
            return await self._client.transact(transaction)
        except LeaseGone:
            await self.ensure_lease()
            return await self._client.transact(transaction)


class NodeKeys:
    """The keys that stand for this agent."""

    def __init__(self, client: EtcdClient, keys: Keys, machine: str) -> None:
        self._client = client
        self._keys = keys
        self._machine = keys.machine(machine) if machine else ""

    async def register(self, record: NodeRecord, holder: HolderRecord, lease: int) -> HolderRecord | None:
        """Write the node's keys under its lease.

        Returns ``None``, or the other agent that has this machine; then nothing was written.
        """
        node = Put(self._keys.node(record.node_id), record.encode(), lease)
        if not self._machine:
            await self._client.transact(Transaction(then=(node,)))
            return None
        both = (node, Put(self._machine, holder.encode(), lease))
        answer = await self._client.transact(Transaction((Absent(self._machine),), both, (Get(self._machine),)))
        found = existing(answer)
        if answer.applied or found is None:
            return None
        other = HolderRecord.decode(found.value)
        if other.node_id != record.node_id:
            return other
        await self._client.transact(Transaction((CreatedAt(self._machine, found.create_revision),), both))
        return None

    async def update(self, record: NodeRecord, lease: int) -> None:
        """Write the node's key anew."""
        await self._client.transact(Transaction(then=(Put(self._keys.node(record.node_id), record.encode(), lease),)))

    async def evict(self, node_id: str) -> None:
        """End the lease of an agent whose process is proven gone, and with it all its keys."""
        answer = await self._client.transact(Transaction(then=(Get(self._keys.node(node_id)),)))
        found = existing(answer)
        if found is not None and found.lease:
            await self.end(found.lease)

    async def end(self, lease: int, timeout_s: float | None = None) -> None:
        """End a lease; one that is gone already is fine."""
        with contextlib.suppress(LeaseGone):
            await self._client.revoke(lease, timeout_s)


def _attempt_of(value: bytes) -> str:
    for decode in (FailureRecord.decode, TableRecord.decode):
        try:
            return decode(value).attempt
        except RecordError:
            continue
    return ""
