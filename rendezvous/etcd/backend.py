"""The etcd rendezvous: many nodes, no single point of failure but the etcd cluster itself.

One agreed generation takes four etcd latencies from the failure on: the failure is written and seen by all, every node
asks for the next generation, the leader sees that all are there and writes the table, all see it. See :mod:`.keys` for
what is written where, :mod:`~ftlaunch.rendezvous.common.decide` for who decides what, :mod:`.membership` for fencing,
:mod:`~ftlaunch.rendezvous.common.peers` for agents that die on living hosts.

Everything here runs on the agent's loop; talk with etcd happens in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from ftlaunch.rendezvous.common.asking import Asking
from ftlaunch.rendezvous.common.decide import View
from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.common.node import NodeDescription, address_towards
from ftlaunch.rendezvous.common.part import Part, Wanted, first_offer
from ftlaunch.rendezvous.common.peers import Doorbell
from ftlaunch.rendezvous.common.records import FailureRecord, HolderRecord, RecordError
from ftlaunch.rendezvous.common.table import difference
from ftlaunch.rendezvous.common.trust import Trust
from ftlaunch.rendezvous.etcd import library
from ftlaunch.rendezvous.etcd import settings as configuration
from ftlaunch.rendezvous.etcd.asking import EtcdCarrier
from ftlaunch.rendezvous.etcd.candidacy import Candidacy
from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.errors import EtcdError, Unreachable
from ftlaunch.rendezvous.etcd.excluding import exclude
from ftlaunch.rendezvous.etcd.leader import DeskListener
from ftlaunch.rendezvous.etcd.leaving import Leaving
from ftlaunch.rendezvous.etcd.lessons import Lessons
from ftlaunch.rendezvous.etcd.membership import Listener, Membership
from ftlaunch.rendezvous.etcd.mirror import Mirror
from ftlaunch.rendezvous.etcd.ring import Ring
from ftlaunch.rendezvous.etcd.settings import EtcdSettings
from ftlaunch.rendezvous.etcd.site import Site, Tasks, log
from ftlaunch.rendezvous.etcd.watch import Broken, Update, follow_ranges
from ftlaunch.rendezvous.interface import (
    Answers,
    Closed,
    Conclude,
    Exclusion,
    ExclusionAnswer,
    ExclusionWish,
    Joining,
    Lesson,
    OnEvent,
    Outcome,
    Parked,
    Publish,
    Question,
    Respondent,
    SettingsError,
    WorldAgreed,
)

_CLOSE_S = 1.0


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
        self._doorbell = Doorbell(node.node_id)
        wanted = Wanted(settings.job_id, settings.min_nodes, settings.max_nodes, settings.join_timeout_s)
        self._part = Part(node, wanted, self._why)
        self._closing = False
        self._complained = False
        self._trouble = "no answer yet"
        self._watching: Future[None] | None = None
        self._impatience: asyncio.TimerHandle | None = None
        self._outage: asyncio.TimerHandle | None = None
        self._asking = Asking(node.node_id)
        self._trust = Trust(settings.margin_s)

    # --- what the agent asks ------------------------------------------------------------------------------------------

    def start(self, on_event: OnEvent) -> None:
        """Raises :class:`SettingsError` for what can be found wrong without a connection."""
        configuration.check(self._settings)
        loaded = library.load()
        self._part.begin(on_event)
        self._io = self._io_given or IoThread()
        if self._io_given is None:
            self._io.start()
        self._site = Site(self._settings, self._node, self._io, EtcdClient(loaded, self._settings))
        self._io.when_ended(lambda: self._site.post(self._on_crash, "the etcd thread has ended"))
        self._mirror = Mirror(self._site.keys)
        listener = Listener(self._on_lost, self._react, self._on_duplicate, self._on_refused)
        self._membership = Membership(self._site, listener, self._trust)
        self._leaving = Leaving(self._site, self._membership)
        self._lessons = Lessons(self._site, self._part.tell)
        self._ring = Ring(self._site, self._mirror.view, self._on_crash)
        self._candidacy = Candidacy(
            self._site, self._membership, self._mirror, self._publish, DeskListener(self._on_mismatch, self._on_crash)
        )
        self._carrier = EtcdCarrier(self._site, self._membership, self._mirror, self._asking.take)
        self._asking.open(self._carrier, self._mirror.view)
        try:
            self._site.peer_port = self._doorbell.open()
        except OSError as error:
            raise SettingsError(f"cannot listen on any port: {error.strerror}") from None
        self._tasks.start(self._connect(), "connecting to etcd")

    def join(self, joining: Joining) -> None:
        """Costs one write per node, and the leader one write for all of them."""
        self._leaving.stay()
        if not self._part.ask(joining):
            return
        self._write_record()
        word = self._part.owed_word(self._mirror.view())
        if word is not None:
            self._put_on_record(word, "asking for a new generation")
        asyncio.get_running_loop().call_soon(self._react)

    def announce_failure(self, generation: int, reason: str) -> None:
        """One write; everybody else hears of it through the watch they have."""
        self._put_on_record(self._part.announce(generation, reason), "announcing a failure")

    def tell_trust(self, listener: Callable[[float], None]) -> None:
        """See the interface."""
        self._trust.listener = listener

    def check_lease(self) -> None:
        """See the interface."""
        self._membership.check_lease()

    def respond_with(self, respondent: Respondent) -> None:
        """See the interface."""
        self._asking.respond_with(respondent)

    async def ask(self, question: Question, limit_s: float, conclude: Conclude | None = None) -> Answers | None:
        """Two writes, and one of each other member."""
        return await self._asking.ask(question, limit_s, conclude)

    def teach(self, lesson: Lesson) -> None:
        """One write per job, more only when it changes; watched by spares alone."""
        self._tasks.start(self._lessons.teach(lesson), "telling what spares may import ahead")

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """As the watch has told them."""
        return self._mirror.view().excluded.entries

    async def exclude(self, wish: ExclusionWish) -> ExclusionAnswer:
        """One read and one write; the leader then ends the generation, if the node is in it."""
        return await exclude(self._site, wish)

    async def finish(self, generation: int, outcome: Outcome, exit_code: int, reason: str, timeout_s: float) -> int:
        """See :class:`~.leaving.Leaving`."""
        view = self._mirror.view()
        if view.closed is not None:
            return view.closed.exit_code if outcome is not Outcome.LEFT else exit_code
        if outcome is Outcome.FINISHED:
            self._part.finish(generation)
            asyncio.get_running_loop().call_soon(self._react)
            return await self._leaving.wait_for_all(generation, exit_code, timeout_s)
        if outcome is Outcome.FAILED:
            return await self._leaving.close_job(exit_code, reason, timeout_s)
        self._closing = True
        await self._candidacy.close()
        await self._ring.close()
        await self._leaving.leave(self._part.farewell(view, generation, reason), timeout_s)
        return exit_code

    async def close(self) -> None:
        """Takes at most about four times a second, whatever the server does."""
        self._closing = True
        self._doorbell.close()
        self._part.end()
        self._lessons.stop()
        if self._impatience is not None:
            self._impatience.cancel()
        self._clear_outage()
        await self._candidacy.close()
        await self._ring.close()
        await self._asking.close()
        self._carrier.close()
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
        limit_s = self._settings.connect_timeout_s
        self._impatience = asyncio.get_running_loop().call_later(limit_s, self._give_up_connecting)
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
        if not self._mirror.complete:
            self._part.fail(f"etcd was not reached for {self._settings.connect_timeout_s:g} s: {self._trouble}")

    def _give_up_waiting(self) -> None:
        self._outage = None
        # Who asks for a generation that does not run yet has a deadline of its own.
        if self._part.parked:
            self._part.fail(f"etcd was not reached for {self._settings.join_timeout_s:g} s: {self._trouble}")

    def _clear_outage(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
            self._outage = None

    def _write_record(self) -> None:
        record = self._part.record(self._site.address, self._site.peer_port)
        if record is None or not self._site.address:
            return
        try:
            record.encode()
        except RecordError as error:
            self._part.fail_soon(f"what this node offers cannot be written to etcd: {error}")
        else:
            self._membership.update(record)

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
            if update.fatal:
                self._part.fail(update.reason)
            elif self._outage is None and self._mirror.complete and not self._closing:
                limit_s = self._settings.join_timeout_s
                self._outage = asyncio.get_running_loop().call_later(limit_s, self._give_up_waiting)
            return
        self._trouble = ""
        self._clear_outage()
        self._mirror.apply(update)
        self._react()
        self._asking.see(self._mirror.questions())

    def _react(self) -> None:
        """Bring everything in line with what is known. May be called at any time, and twice."""
        if self._closing:
            return
        view = self._mirror.view()
        for event in self._part.hear(view):
            if isinstance(event, Parked):
                self._lessons.listen()
            elif isinstance(event, WorldAgreed):
                self._lessons.stop()
                self._ring.follow(view.table.seats if view.table is not None else ())
                record = self._part.record(self._site.address, self._site.peer_port)
                if record is not None:
                    self._membership.remember(record)
            elif isinstance(event, Closed):
                self._trust.release()
                self._leaving.closed(event.exit_code)
        if not self._part.standing.told_closed:
            self._compare_settings(view)
            self._candidacy.consider(view)

    def _compare_settings(self, view: View) -> None:
        leader = view.leader
        if leader is None or leader.node_id == self._node.node_id or self._part.standing.seated is not None:
            return
        them = f"{leader.host} (pid {leader.pid})"
        unlike = difference(self._site.job_settings, leader.settings, self._site.name, them)
        if unlike is None or self._complained:
            return
        self._complained = True
        if view.table is not None:
            self._on_mismatch(unlike)
            return
        reason = f"the nodes of job {self._settings.job_id} were started differently: {unlike}"
        self._tasks.start(self._leaving.close_job(2, reason, self._settings.join_timeout_s), "closing the job")

    def _why(self) -> str:
        return self._trouble or self._candidacy.reason

    # --- when something is wrong --------------------------------------------------------------------------------------

    def _on_lost(self, reason: str) -> None:
        self._candidacy.step_down()
        if self._settings.stop_on_outage and self._part.counts_on_us and not self._leaving.finishing:
            self._part.fence(reason)
            return
        if not self._settings.stop_on_outage:
            # The others may have lost theirs in the same outage and train on; a spare may lead when it is over. Whether
            # they went on without us stands in etcd.
            now = asyncio.get_running_loop().time()
            self._candidacy.patient_until = now + self._settings.node_timeout_s
        self._membership.refresh()

    def _on_duplicate(self, other: HolderRecord) -> None:
        self._part.end_here(
            f"two agents of job {self._settings.job_id} run on {self._node.host}: pid {other.pid} ({other.node_id}) "
            f"and pid {self._node.pid} ({self._node.node_id}); start one per node, or give "
            "--allow-multiple-agents-per-node"
        )

    def _on_mismatch(self, unlike: str) -> None:
        self._part.end_here(f"this node was started differently from the running job {self._settings.job_id}: {unlike}")

    def _on_refused(self, reason: str) -> None:
        log.error("rendezvous: %s", reason)
        self._part.fail(reason)

    def _on_crash(self, reason: str) -> None:
        if not self._closing:
            self._part.crash(reason)
