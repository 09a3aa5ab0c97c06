"""Standing for leader whenever nobody leads, and leading for as long as the mandate lasts."""

from __future__ import annotations

import asyncio

from ftlaunch.rendezvous.common.decide import View
from ftlaunch.rendezvous.etcd.election import campaign
from ftlaunch.rendezvous.etcd.errors import EtcdError, LeaseGone
from ftlaunch.rendezvous.etcd.leader import DeskListener, LeaderDesk
from ftlaunch.rendezvous.etcd.membership import Membership
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.site import Site, Tasks, log
from ftlaunch.rendezvous.interface import Publish


class Candidacy:
    """This agent's part in leading the job. :meth:`consider` may be called at any time."""

    def __init__(
        self, site: Site, membership: Membership, mirror: Mirror, publish: Publish, listener: DeskListener
    ) -> None:
        self._site = site
        self._membership = membership
        self._mirror = mirror
        self._publish = publish
        self._listener = listener
        self._tasks = Tasks(listener.on_crash)
        self._standing: asyncio.Task[None] | None = None
        self._desk: LeaderDesk | None = None
        self._in_office = False
        self.patient_until = float("-inf")
        """On the loop's clock: until then, nodes that lost their lease in an outage may come back."""

    @property
    def reason(self) -> str:
        """What the leader waits for, if it is us; else empty."""
        return self._desk.reason if self._desk is not None else ""

    def consider(self, view: View) -> None:
        """Stand for leader, lead, or stop leading, as things are now."""
        if self._desk is not None:
            if self._is_deposed(self._desk):
                self.step_down()
            else:
                self._desk.consider()
            return
        lease = self._membership.lease
        if lease is None or not self._membership.registered or not self._mirror.complete or self._standing is not None:
            return
        ours = view.leader is not None and view.leader.node_id == self._site.node.node_id
        if ours or self._mirror.get(self._site.keys.leader) is None:
            self._standing = self._tasks.start(self._stand(lease.lease_id), "standing for leader")

    def step_down(self) -> None:
        """Stop leading: what we might still write is refused by etcd."""
        desk, self._desk = self._desk, None
        self._in_office = False
        if desk is not None:
            desk.close()

    async def close(self) -> None:
        """Stop everything."""
        self.step_down()
        await self._tasks.cancel_all()

    def _is_deposed(self, desk: LeaderDesk) -> bool:
        lease, key = self._membership.lease, self._mirror.get(self._site.keys.leader)
        if lease is None or lease.lease_id != desk.mandate.lease:
            return True
        if key is None:
            # Not there yet, or deleted by somebody although our lease lives.
            return self._in_office
        self._in_office = key.create_revision == desk.mandate.created
        return key.create_revision > desk.mandate.created

    async def _stand(self, lease_id: int) -> None:
        site = self._site
        try:
            me = site.holder()
            mandate = await site.ask(lambda: campaign(site.client, site.keys, me, lease_id))
            if mandate is not None:
                await site.ask(site.job.ensure_lease)
                self._desk = LeaderDesk(site, mandate, self._mirror.view, self._publish, self._listener)
                self._desk.open(self.patient_until)
        except LeaseGone:
            log.debug("the lease ended while standing for leader")
        except EtcdError as error:
            log.warning("rendezvous: %s", error)
        finally:
            self._standing = None
