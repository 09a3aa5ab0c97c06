"""Who leads: the one that created the ``leader`` key, for as long as its lease lives.

There is no queue: when the key goes, every agent hears of it through the watch it has anyway, tries once to create
it, and one succeeds. What a leader writes carries the condition that the key is still the one it created, so a leader
that lost its lease without knowing it cannot write any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftlaunch.rendezvous.common.records import HolderRecord, RecordError
from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.errors import Unreachable
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.wire import (
    Absent,
    Condition,
    CreatedAt,
    Get,
    KeyValue,
    Put,
    Transaction,
    ValueIs,
    existing,
)


@dataclass(frozen=True)
class Mandate:
    """The proof of leadership: which creation of the key is ours, and under which lease."""

    key: str
    created: int
    lease: int

    @property
    def condition(self) -> Condition:
        """Holds for as long as we lead."""
        return CreatedAt(self.key, self.created)


async def campaign(client: EtcdClient, keys: Keys, me: HolderRecord, lease: int) -> Mandate | None:
    """Try once to become the leader; ``None`` when somebody else is. Raises :class:`~.errors.EtcdError`."""
    value = me.encode()
    put = Put(keys.leader, value, lease)
    answer = await client.transact(Transaction((Absent(keys.leader),), (put,), (Get(keys.leader),)))
    if answer.applied:
        return Mandate(keys.leader, answer.revision, lease)
    found = existing(answer)
    if found is None or not _is_ours(found, me):
        return None
    if found.lease == lease:
        # Created by an earlier try whose answer was lost.
        return Mandate(keys.leader, found.create_revision, lease)
    # Ours from before we lost a lease: take it over to the new one.
    answer = await client.transact(Transaction((ValueIs(keys.leader, found.value),), (put,)))
    if not answer.applied:
        raise Unreachable("the leader changed meanwhile")
    return Mandate(keys.leader, found.create_revision, lease)


def _is_ours(found: KeyValue, me: HolderRecord) -> bool:
    try:
        return HolderRecord.decode(found.value).node_id == me.node_id
    except RecordError:
        return False
