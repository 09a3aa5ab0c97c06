"""Following key ranges: what is there, then every change, however often the connection breaks.

After each (re)connection the watch is set up from now on, then the ranges are read at one revision: nothing is
missed, and what was known is checked against the read. History is never asked for, so a compaction or a server that
lost its memory is no special case; nor does a new watch wait its turn behind others that catch up (etcd serves those
every 100 ms).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Union

from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.errors import EtcdError, Refused
from ftlaunch.rendezvous.etcd.keys import KeyRange
from ftlaunch.rendezvous.etcd.retry import Policy
from ftlaunch.rendezvous.etcd.wire import Change, Get, KeyValue, Transaction


@dataclass(frozen=True)
class Snapshot:
    """All there is in the ranges."""

    ranges: tuple[KeyRange, ...]
    values: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True)
class Broken:
    """The watch has no connection at the moment; it goes on trying. ``fatal``: trying again is useless."""

    reason: str
    fatal: bool = False


Update = Union[Snapshot, tuple[Change, ...], Broken]


async def follow_ranges(
    client: EtcdClient, ranges: Sequence[KeyRange], tell: Callable[[Update], None], idle_s: float
) -> None:
    """Tell what is there and what changes, for ever. ``tell`` must not raise."""
    policy, failed = Policy(max_s=0.5), 0
    while True:
        try:
            if not client.is_proven:
                await client.transact(Transaction(then=(Get(ranges[0].start),)))
            async with contextlib.aclosing(client.watch(ranges, idle_s)) as batches:
                async for update in _updates(client, ranges, batches):
                    failed = 0
                    tell(update)
        except Refused as error:
            tell(Broken(str(error), fatal=True))
        except EtcdError as error:
            tell(Broken(str(error)))
        # Many agents lose the same server at the same moment.
        await asyncio.sleep(policy.pause(failed, random.random()))
        failed += 1


async def _updates(
    client: EtcdClient, ranges: Sequence[KeyRange], batches: AsyncIterator[tuple[Change, ...]]
) -> AsyncIterator[Update]:
    known = 0
    async for changes in batches:
        if not changes:
            snapshot = await read_ranges(client, ranges)
            known = snapshot.revision
            yield snapshot
            continue
        fresh = tuple(change for change in changes if change.revision > known)
        if fresh:
            yield fresh


async def read_ranges(client: EtcdClient, ranges: Sequence[KeyRange]) -> Snapshot:
    """Read all ranges at one revision. Raises :class:`~.errors.EtcdError`."""
    answer = await client.transact(Transaction(then=tuple(Get(keys) for keys in ranges)))
    return Snapshot(tuple(ranges), tuple(kv for part in answer.found for kv in part), answer.revision)
