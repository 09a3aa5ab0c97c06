"""Keeping a lease alive, and knowing until when it can be trusted.

The lease stands for the agent: as long as it lives, the others count on this node. A renewal that was *sent* at ``t``
and answered holds at the server at least until ``t`` plus the lease time, so :attr:`Lease.valid_until` counts from
the sending, on this machine's own clock. The clock is CLOCK_BOOTTIME, which goes on while the machine is suspended
(clock_gettime(2)).

When the lease is lost (:class:`LeaseOver`, or ``valid_until`` minus the margin has passed): the workers of this node
must stop before anything else, then the node may join anew with a new lease. ``valid_until`` is read by the agent's
loop, so that fencing does not depend on this code still running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.errors import EtcdError, LeaseGone
from ftlaunch.rendezvous.etcd.retry import Policy


class LeaseOver(Exception):
    """The server does not know the lease any more. Caught by the backend."""


class Lease:
    """One granted lease. :attr:`valid_until` may be read from any thread."""

    def __init__(self, lease_id: int, ttl_s: float, valid_until: float) -> None:
        self.lease_id = lease_id
        self.ttl_s = ttl_s
        self.valid_until = valid_until
        self.trouble = ""
        """Why the last renewal failed; empty when it did not."""
        self.on_renewed: Callable[[float], None] | None = None
        """Called with :attr:`valid_until` whenever it has moved, where it was renewed."""

    def renewed(self, valid_until: float) -> None:
        """The server has answered."""
        self.valid_until, self.trouble = valid_until, ""
        if self.on_renewed is not None:
            self.on_renewed(valid_until)


async def grant(client: EtcdClient, ttl_s: float, clock: Callable[[], float] = boottime) -> Lease:
    """Get a new lease. Raises :class:`~.errors.EtcdError`."""
    sent = clock()
    lease_id, granted = await client.grant(max(2, round(ttl_s)))
    return Lease(lease_id, granted, sent + granted)


async def keep(client: EtcdClient, lease: Lease, clock: Callable[[], float] = boottime) -> None:
    """Renew until the server says that the lease is gone: raises :class:`LeaseOver` then, and returns never.

    Every other error is tried again, for as long as it takes: only the server's word ends a lease, and only the
    clock ends our trust in it.
    """
    retry = Policy(initial_s=0.05, max_s=lease.ttl_s / 6)
    failed = 0
    while True:
        # Early enough for two further tries before the margin is touched. From the last sending, too: an answer that
        # took long, as across an outage, has used up some of the time.
        due_s = lease.valid_until - lease.ttl_s * 2 / 3 - clock()
        await asyncio.sleep(retry.pause(failed - 1, 0.0) if failed else max(0.0, due_s))
        sent = clock()
        try:
            ttl = await client.keep_alive(lease.lease_id, timeout_s=max(0.3, lease.ttl_s / 6))
        except LeaseGone:
            ttl = 0
        except EtcdError as error:
            lease.trouble = str(error)
            failed += 1
            continue
        if ttl <= 0:
            raise LeaseOver
        lease.renewed(sent + ttl)
        failed = 0


async def hold_job_lease(client: EtcdClient, lease_id: int, ttl_s: float) -> None:
    """Renew the lease of the job's own keys, as the leader does; never returns. Losing it loses no decision."""
    while True:
        try:
            if await client.keep_alive(lease_id, timeout_s=5.0) <= 0:
                await client.grant(round(ttl_s), lease_id)
        except EtcdError:
            await asyncio.sleep(1.0)
            continue
        await asyncio.sleep(ttl_s / 3)
