"""This node's own keys: written under a lease, written anew when they change, given up in time.

The lease is the only thing that ties running workers to the job. :attr:`Membership.on_lost` is called once when it
can no longer be trusted, on this machine's own clock and early enough to stop the workers; from then on nothing is
renewed or written until :meth:`Membership.update` asks to be a member again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.peers import Proof, probe
from ftlaunch.rendezvous.common.records import HolderRecord, NodeRecord
from ftlaunch.rendezvous.common.trust import CLOCK_CHECK_S, Trust, stood_still
from ftlaunch.rendezvous.etcd import lease as leases
from ftlaunch.rendezvous.etcd.errors import EtcdError, LeaseGone, Unreachable
from ftlaunch.rendezvous.etcd.site import Site, log

_CONFLICT_PAUSE_S = 0.5


@dataclass(frozen=True)
class Listener:
    """Who wants to know. All are called on the agent's loop."""

    on_lost: Callable[[str], None]
    """The lease cannot be trusted any more; why."""
    on_registered: Callable[[], None]
    """The keys stand, under a new lease."""
    on_duplicate: Callable[[HolderRecord], None]
    """Another living agent of this job has this machine."""
    on_refused: Callable[[str], None]
    """etcd will never let us in; why."""


class Membership:
    """Keeps the node's keys as :meth:`update` wants them."""

    def __init__(
        self, site: Site, listener: Listener, trust: Trust | None = None, clock: Callable[[], float] = boottime
    ) -> None:
        self._site = site
        self._trust = trust or Trust()
        self._listener = listener
        self._clock = clock
        self._dirty = asyncio.Event()
        self._wanted: NodeRecord | None = None
        self._renewing: Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self.lease: leases.Lease | None = None
        self.registered = False

    def update(self, record: NodeRecord) -> None:
        """What the node's key shall say; written as soon as possible, by :meth:`run`."""
        self._wanted = record
        self._dirty.set()

    def remember(self, record: NodeRecord) -> None:
        """What the key shall say when it is written anew for another reason; not worth a write by itself."""
        self._wanted = record

    def refresh(self) -> None:
        """Register again as before, with a new lease."""
        self._dirty.set()

    async def run(self) -> None:
        """Bring the keys up to date whenever they are not, until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._bring_up_to_date()
            except LeaseGone:
                self._lose("etcd does not know this node's lease any more")
            except Unreachable:
                self._dirty.set()
            except EtcdError as error:
                self._listener.on_refused(str(error))

    async def resign(self, timeout_s: float) -> None:
        """Give everything up: the keys disappear at once if etcd can be reached within ``timeout_s``."""
        lease, self._wanted = self.lease, None
        self.forget()
        if lease is not None:
            try:
                await asyncio.wait_for(
                    self._site.io.run(self._site.nodes.end(lease.lease_id, timeout_s)), timeout_s + 0.5
                )
            except (EtcdError, asyncio.TimeoutError, RuntimeError) as error:
                log.debug("the lease ends by itself: %s", error)

    def forget(self) -> None:
        """Stop renewing."""
        self.lease, self.registered = None, False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    # --- registering ------------------------------------------------------------------------------------------------

    async def _bring_up_to_date(self) -> None:
        site, wanted = self._site, self._wanted
        if wanted is None:
            return
        lease = self.lease
        if lease is None:
            lease = await site.ask(lambda: leases.grant(site.client, site.settings.node_timeout_s, self._clock))
            self._begin(lease)
        if self.registered:
            await site.ask(lambda: site.nodes.update(wanted, lease.lease_id))
            return
        holder = site.holder()
        other = await site.ask(lambda: site.nodes.register(wanted, holder, lease.lease_id))
        if other is not None:
            await self._settle(other)
            return
        if lease is self.lease:
            self.registered = True
            self._listener.on_registered()

    async def _settle(self, other: HolderRecord) -> None:
        """Another agent has this machine: it lives, or it is a ghost whose lease has not ended yet."""
        # Over loopback: then it is this very kernel that refuses, and its refusal is a proof.
        proof = await probe("127.0.0.1", other.peer_port, other.node_id)
        if proof is Proof.ALIVE:
            self._listener.on_duplicate(other)
            return
        if proof is Proof.GONE:
            await self._site.ask(lambda: self._site.nodes.evict(other.node_id))
        else:
            log.info("waiting for the lease of a former agent on this machine (pid %d) to end", other.pid)
            await asyncio.sleep(_CONFLICT_PAUSE_S)
        self._dirty.set()

    # --- the lease --------------------------------------------------------------------------------------------------

    def _begin(self, lease: leases.Lease) -> None:
        self.lease, self.registered = lease, False
        if self._site.settings.stop_on_outage:
            lease.on_renewed = self._trust.reach
            self._trust.reach(lease.valid_until)
        self._looked_at = self._clock()
        self._renewing = self._site.io.submit(leases.keep(self._site.client, lease, self._clock))
        self._renewing.add_done_callback(lambda ended: self._site.post(self._renewal_ended, lease, ended))
        self._watch_clock(lease)

    def _renewal_ended(self, lease: leases.Lease, ended: Future[None]) -> None:
        if lease is not self.lease:
            return
        try:
            error = ended.exception()
        except CancelledError:
            error = None
        if isinstance(error, leases.LeaseOver):
            self._lose("etcd has ended this node's lease: it was not heard of for too long")
        else:
            # Never silent: whatever stopped the renewal, the lease is as good as lost.
            self._lose(f"the renewal of this node's lease stopped: {error!r}")

    def has_lease(self) -> bool:
        """Whether etcd counts on this node for sure."""
        return self.lease is not None and self.lease.valid_until > self._clock()

    def check_lease(self) -> float:
        """Lose the lease if its time is over; returns the seconds that are left. To be called at any time."""
        lease, settings, now = self.lease, self._site.settings, self._clock()
        paused_s, self._looked_at = now - self._looked_at, now
        if lease is None:
            return 0.0
        left = lease.valid_until - settings.margin_s - now
        if left <= 0 and settings.stop_on_outage:
            since = settings.node_timeout_s - settings.margin_s
            why = f"no renewal of this node's lease was answered for {since:g} s: {lease.trouble or 'no answer'}"
            self._lose(stood_still(paused_s) or why)
        return left

    def _watch_clock(self, lease: leases.Lease) -> None:
        if lease is not self.lease:
            return
        left = self.check_lease()
        if lease is self.lease:
            # The loop's timers stand still while the machine is suspended, so none may be far away.
            pause_s = min(left, CLOCK_CHECK_S) if left > 0 else CLOCK_CHECK_S
            self._alarm = asyncio.get_running_loop().call_later(pause_s, self._watch_clock, lease)

    def _lose(self, reason: str) -> None:
        if self.lease is None:
            return
        self.forget()
        self._listener.on_lost(reason)
