"""The etcd rendezvous: many nodes, no single point of failure but the etcd cluster itself.

One agreed generation takes four etcd latencies from the failure on: the failure is written and seen by all, every
node asks for the next generation, the leader sees that all are there and writes the table, all see it. See
:mod:`.keys` for what is written where, :mod:`.decide` for who decides what, :mod:`.membership` for fencing,
:mod:`.peers` for agents that die on living hosts.

Everything here runs on the agent's loop; talk with etcd happens in :mod:`.iothread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ftlaunch.rendezvous.common import peers
from ftlaunch.rendezvous.common.decide import Standing, View, follow
from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.common.node import NodeDescription, address_towards
from ftlaunch.rendezvous.common.portkeeper import PortKeeper
from ftlaunch.rendezvous.common.records import FailureKind, FailureRecord, HolderRecord, NodeRecord, RecordError, encode
from ftlaunch.rendezvous.common.table import difference
from ftlaunch.rendezvous.etcd import library
from ftlaunch.rendezvous.etcd import settings as configuration
from ftlaunch.rendezvous.etcd.candidacy import Candidacy
from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.errors import EtcdError, Unreachable
from ftlaunch.rendezvous.etcd.leader import DeskListener
from ftlaunch.rendezvous.etcd.leaving import Leaving
from ftlaunch.rendezvous.etcd.membership import Listener, Membership
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.ring import Ring
from ftlaunch.rendezvous.etcd.settings import EtcdSettings
from ftlaunch.rendezvous.etcd.site import Site, Tasks, log, new_attempt
from ftlaunch.rendezvous.etcd.watch import Broken, Update, follow_ranges
from ftlaunch.rendezvous.interface import (
    Closed,
    JoinFailed,
    Joining,
    LeaseLost,
    OnEvent,
    Outcome,
    Parked,
    Publish,
    RendezvousEvent,
    SettingsError,
    WorldAgreed,
)

_CLOSE_S = 1.0


def first_offer(offers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Share what the node with group rank 0 offers: the rule unless another is given."""
    return offers[0] if offers else {}


class EtcdRendezvous:
    """One node's part in the rendezvous of a job; implements :class:`~ftlaunch.rendezvous.interface.Rendezvous`.

    ``publish`` makes, on the leader, what all nodes get from what all nodes offer. ``io`` lets several of one process
    share a thread; it is then started and stopped by who made it.
    """

    def __init__(
        self,
        settings: EtcdSettings,
        node: NodeDescription,
        publish: Publish = first_offer,
        io: IoThread | None = None,
    ) -> None:
        self._settings = settings
        self._node = node
        self._publish = publish
        self._io_given = io
        self._tasks = Tasks(self._on_crash)
        self._ports = PortKeeper(node.master_port)
        self._doorbell = peers.Doorbell(node.node_id)
        self._standing = Standing(node.node_id, settings.job_id, settings.max_nodes)
        self._joining: Joining | None = None
        self._announced = -1
        self._fenced = False
        self._closing = False
        self._trouble = "no answer yet"
        self._deadline: asyncio.TimerHandle | None = None
        self._watching: Future[None] | None = None

    # --- what the agent asks ------------------------------------------------------------------------------------------

    def start(self, on_event: OnEvent) -> None:
        """Raises :class:`SettingsError` for what can be found wrong without a connection."""
        configuration.check(self._settings)
        loaded = library.load()
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._io = self._io_given or IoThread()
        if self._io_given is None:
            self._io.start()
        self._site = Site(self._settings, self._node, self._io, EtcdClient(loaded, self._settings))
        self._io.when_ended(lambda: self._site.post(self._on_crash, "the etcd thread has ended"))
        self._mirror = Mirror(self._site.keys)
        listener = Listener(self._on_lost, self._react, self._on_duplicate, self._on_refused)
        self._membership = Membership(self._site, listener)
        self._leaving = Leaving(self._site, self._membership)
        self._ring = Ring(self._site, self._mirror.view, self._on_crash)
        self._candidacy = Candidacy(
            self._site, self._membership, self._mirror, self._publish, DeskListener(self._on_mismatch, self._on_crash)
        )
        try:
            self._site.peer_port = self._doorbell.open()
        except OSError as error:
            raise SettingsError(f"cannot listen on any port: {error.strerror}") from None
        self._tasks.start(self._connect(), "connecting to etcd")

    def join(self, joining: Joining) -> None:
        """Costs one write per node, and the leader one write for all of them."""
        self._leaving.stay()
        self._joining = joining
        self._standing = replace(self._standing, asked=joining.generation)
        try:
            self._ports.prepare()
        except OSError as error:
            self._loop.call_soon(self._join_failed, f"no port for the store: {error.strerror}")
            return
        self._write_record()
        self._call_others(joining)
        self._set_deadline()
        self._loop.call_soon(self._react)

    def announce_failure(self, generation: int, reason: str) -> None:
        """One write; everybody else hears of it through the watch they have."""
        self._announced = max(self._announced, generation)
        self._put_on_record(self._failure(generation, FailureKind.FAILED, reason), "announcing a failure")

    async def finish(self, generation: int, outcome: Outcome, exit_code: int, reason: str, timeout_s: float) -> int:
        """See :class:`~.leaving.Leaving`."""
        view = self._mirror.view()
        if view.closed is not None:
            return view.closed.exit_code if outcome is not Outcome.LEFT else exit_code
        if outcome is Outcome.FINISHED:
            return await self._leaving.wait_for_all(generation, exit_code, timeout_s)
        if outcome is Outcome.FAILED:
            return await self._leaving.close_job(exit_code, reason, timeout_s)
        seated = generation if self._standing.seated == generation and view.failure is None else None
        self._closing = True
        await self._candidacy.close()
        await self._ring.close()
        failure = None if seated is None else self._failure(generation, FailureKind.LEFT, reason)
        await self._leaving.leave(failure, timeout_s)
        return exit_code

    async def close(self) -> None:
        """Takes at most about four times a second, whatever the server does."""
        self._closing = True
        self._doorbell.close()
        self._ports.close()
        if self._deadline is not None:
            self._deadline.cancel()
        await self._candidacy.close()
        await self._ring.close()
        await self._tasks.cancel_all()
        if self._watching is not None:
            self._watching.cancel()
        await self._membership.resign(_CLOSE_S)
        try:
            await asyncio.wait_for(self._io.run(self._site.client.close()), _CLOSE_S)
        except (asyncio.TimeoutError, RuntimeError):
            log.debug("the connection to etcd is left to the process's end")
        if self._io_given is None:
            await self._io.stop(_CLOSE_S)

    # --- connecting and joining ---------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        loop, limit_s = self._loop, self._settings.connect_timeout_s
        loop.call_later(limit_s, self._give_up_connecting)
        if not self._site.address:
            try:
                self._site.address = await self._site.ask(self._find_address, limit_s)
            except Unreachable as error:
                self._trouble = str(error)
                return
        site, idle_s = self._site, self._settings.node_timeout_s

        def tell(update: Update) -> None:
            site.post(self._on_update, update)

        self._watching = self._io.submit(follow_ranges(site.client, site.keys.public, tell, idle_s))
        self._tasks.start(self._membership.run(), "keeping this node's keys")
        self._write_record()

    async def _find_address(self) -> str:
        try:
            return address_towards([(endpoint.host, endpoint.port) for endpoint in self._settings.endpoints])
        except SettingsError as error:
            # A name that does not resolve yet may do so in a moment.
            raise Unreachable(str(error)) from None

    def _give_up_connecting(self) -> None:
        if not self._mirror.complete and not self._closing:
            self._join_failed(f"etcd was not reached for {self._settings.connect_timeout_s:g} s: {self._trouble}")

    def _write_record(self) -> None:
        if self._joining is None or not self._site.address:
            return
        record = NodeRecord(
            node_id=self._node.node_id,
            host=self._node.host,
            pid=self._node.pid,
            address=self._site.address,
            peer_port=self._site.peer_port,
            slots=self._joining.slots,
            master_port=self._ports.upcoming,
            order=self._node.node_rank,
            asked=self._standing.asked,
            counted=self._joining.counted,
            settings_digest=self._site.settings_digest,
            offers=self._joining.offers,
        )
        try:
            encode(record)
        except RecordError as error:
            self._loop.call_soon(self._join_failed, f"what this node offers cannot be written to etcd: {error}")
        else:
            self._membership.update(record)

    def _call_others(self, joining: Joining) -> None:
        """Whoever asks for the next generation while the current one runs for all others must tell them."""
        view, seated = self._mirror.view(), self._standing.seated
        fenced, self._fenced = self._fenced, False
        if view.table is None or view.table.generation != seated or view.failure is not None:
            return
        if self._announced >= seated or joining.generation <= seated:
            return
        if fenced:
            failure = self._failure(seated, FailureKind.LOST, "it lost its lease and stopped its workers")
        else:
            failure = self._failure(seated, FailureKind.ASKED, "a new generation is wanted", joining.counted)
        self._put_on_record(failure, "asking for a new generation")

    def _failure(self, generation: int, kind: FailureKind, reason: str, counted: bool = True) -> FailureRecord:
        return FailureRecord(generation, kind, self._node.node_id, self._node.host, reason, new_attempt(), counted)

    def _put_on_record(self, failure: FailureRecord, name: str) -> None:
        async def put() -> None:
            try:
                await self._site.ask(lambda: self._site.job.fail(failure))
            except EtcdError as error:
                log.warning("%s: %s", name, error)

        self._tasks.start(put(), name)

    # --- what comes from etcd -----------------------------------------------------------------------------------------

    def _on_update(self, update: Update) -> None:
        if isinstance(update, Broken):
            if update.reason != self._trouble:
                log.warning("rendezvous: %s", update.reason)
            self._trouble = update.reason
            if update.fatal and self._standing.asked is not None:
                self._join_failed(update.reason)
            return
        self._trouble = ""
        self._mirror.apply(update)
        self._react()

    def _react(self) -> None:
        """Bring everything in line with what is known. May be called at any time, and twice."""
        if self._closing:
            return
        view = self._mirror.view()
        self._standing, events = follow(view, self._standing)
        for event in events:
            self._tell(event, view)
        if self._standing.told_closed:
            return
        self._compare_settings(view)
        self._candidacy.consider(view)
        if self._standing.asked is not None and view.failure is not None and self._deadline is None:
            # A parked spare has no deadline while the job runs without it.
            self._set_deadline()

    def _tell(self, event: RendezvousEvent, view: View) -> None:
        if isinstance(event, WorldAgreed):
            self._ports.agreed(event.world.group_rank == 0)
            self._fenced = False
            self._ring.follow(view.table.seats if view.table is not None else ())
        if isinstance(event, (WorldAgreed, Parked, Closed)):
            self._clear_deadline()
        if isinstance(event, Closed):
            self._leaving.closed(event.exit_code)
            if self._standing.seated is None:
                event = replace(event, reason=f"job {self._settings.job_id} has ended: {event.reason}")
        self._on_event(event)

    def _compare_settings(self, view: View) -> None:
        leader, table = view.leader, view.table
        if leader is None or leader.node_id == self._node.node_id or self._standing.seated is not None:
            return
        them = f"{leader.host} (pid {leader.pid})"
        unlike = difference(self._site.job_settings, leader.settings, self._site.name, them)
        if unlike is None:
            return
        if table is None:
            self._standing = replace(self._standing, seated=-1)
            reason = f"the nodes of job {self._settings.job_id} were started differently: {unlike}"
            self._tasks.start(self._leaving.close_job(2, reason, self._settings.join_timeout_s), "closing the job")
        else:
            self._on_mismatch(unlike)

    # --- when something is wrong --------------------------------------------------------------------------------------

    def _on_lost(self, reason: str) -> None:
        self._candidacy.step_down()
        standing = self._standing
        seated = standing.seated
        running = seated is not None and standing.asked is None and not self._leaving.finishing
        if not running or seated is None:
            self._membership.refresh()
            return
        if not self._settings.stop_on_outage:
            # The others may have lost theirs in the same outage; whether they went on without us stands in etcd.
            self._candidacy.patient_until = self._loop.time() + self._settings.node_timeout_s
            self._membership.refresh()
            return
        self._fenced = True
        if standing.told_failed < seated:
            self._standing = replace(standing, told_failed=seated)
            self._on_event(LeaseLost(seated, reason))

    def _on_duplicate(self, other: HolderRecord) -> None:
        self._end_here(
            f"two agents of job {self._settings.job_id} run on {self._node.host}: pid {other.pid} ({other.node_id}) "
            f"and pid {self._node.pid} ({self._node.node_id}); start one per node, or give "
            "--allow-multiple-agents-per-node"
        )

    def _on_mismatch(self, unlike: str) -> None:
        self._end_here(f"this node was started differently from the running job {self._settings.job_id}: {unlike}")

    def _end_here(self, reason: str) -> None:
        """End this agent as misconfigured, not the job."""
        if not self._standing.told_closed:
            self._standing = replace(self._standing, told_closed=True)
            self._clear_deadline()
            self._on_event(Closed(2, reason))

    def _on_refused(self, reason: str) -> None:
        if self._standing.asked is not None:
            self._join_failed(reason)
        else:
            log.error("rendezvous: %s", reason)

    def _on_crash(self, reason: str) -> None:
        if self._closing:
            return
        if self._standing.asked is not None:
            self._join_failed(f"internal error: {reason}")
        elif self._standing.seated is not None:
            self._on_event(LeaseLost(self._standing.seated, f"internal error: {reason}"))

    def _set_deadline(self) -> None:
        self._clear_deadline()
        limit_s = self._settings.join_timeout_s
        self._deadline = self._loop.call_later(limit_s, self._deadline_passed)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        self._deadline = None
        known = self._candidacy.reason if self._mirror.complete else self._trouble
        wanted = f"{self._settings.min_nodes} to {self._settings.max_nodes} nodes"
        self._join_failed(
            f"not agreed within {self._settings.join_timeout_s:g} s on {wanted}: {known or 'too few came'}"
        )

    def _join_failed(self, reason: str) -> None:
        asked = self._standing.asked
        if asked is not None and not self._closing:
            self._standing = replace(self._standing, asked=None)
            self._clear_deadline()
            self._on_event(JoinFailed(asked, reason))
