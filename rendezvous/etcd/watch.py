"""Following key ranges: what is there, then every change, however often the connection breaks.

After each (re)connection the ranges are read at one revision, and the watch goes on from the next: nothing is missed,
and what the watch told before is checked against the read. A compaction or a server that lost its memory is no
special case.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.errors import Compacted, EtcdError, Refused, Unreachable
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
            snapshot = await read_ranges(client, ranges)
            tell(snapshot)
            async with contextlib.aclosing(client.watch(ranges, snapshot.revision + 1, idle_s)) as batches:
                async for changes in batches:
                    failed = 0
                    if changes:
                        tell(changes)
        except Refused as error:
            tell(Broken(str(error), fatal=True))
        except (Unreachable, Compacted) as error:
            tell(Broken(str(error)))
        except EtcdError as error:
            tell(Broken(f"{type(error).__name__}: {error}"))
        # Many agents lose the same server at the same moment.
        await asyncio.sleep(policy.pause(failed, random.random()))
        failed += 1


async def read_ranges(client: EtcdClient, ranges: Sequence[KeyRange]) -> Snapshot:
    """Read all ranges at one revision. Raises :class:`~.errors.EtcdError`."""
    answer = await client.transact(Transaction(then=tuple(Get(keys) for keys in ranges)))
    return Snapshot(tuple(ranges), tuple(kv for part in answer.found for kv in part), answer.revision)
