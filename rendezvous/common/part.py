"""One node's part in a job: what its agent asked for, what it was told, and by when it wants an answer.

The same for every backend of several nodes: a backend brings views of the job, this turns them into events, each
once, and keeps the ports and the deadline that go with them. All on the agent's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.rendezvous.common.decide import Standing, View, follow
from ftlaunch.rendezvous.common.node import NodeDescription
from ftlaunch.rendezvous.common.portkeeper import PortKeeper
from ftlaunch.rendezvous.common.records import FailureKind, FailureRecord, NodeRecord
from ftlaunch.rendezvous.interface import (
    Closed,
    Excluded,
    JoinFailed,
    Joining,
    LeaseLost,
    OnEvent,
    Parked,
    RendezvousEvent,
    WorldAgreed,
)


def first_offer(offers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Share what the node with group rank 0 offers: the rule unless another is given."""
    return offers[0] if offers else {}


def new_attempt() -> str:
    """An id for one try to write something, so that it is recognised when its answer got lost."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True)
class Wanted:
    """Which job this is, how many nodes it wants, and how long a node waits for a generation."""

    job_id: str
    min_nodes: int
    max_nodes: int
    join_timeout_s: float

    def settings_of(self, node: NodeDescription) -> dict[str, str]:
        """What must be the same on all nodes of the job."""
        return {**node.settings, "nnodes": f"{self.min_nodes}:{self.max_nodes}"}

    def digest_of(self, node: NodeDescription) -> str:
        """A short form of :meth:`settings_of`."""
        return hashlib.sha256(json.dumps(self.settings_of(node), sort_keys=True).encode()).hexdigest()[:16]


class Part:
    """``why`` says what is missing, for who waited in vain."""

    def __init__(self, node: NodeDescription, wanted: Wanted, why: Callable[[], str]) -> None:
        self._node = node
        self._wanted = wanted
        self._why = why
        self._ports = PortKeeper(node.master_port)
        self._joining: Joining | None = None
        self._announced = -1
        self._fenced = False
        self._over = False
        self._deadline: asyncio.TimerHandle | None = None
        self._on_event: OnEvent | None = None
        self.standing = Standing(node.node_id, wanted.job_id, wanted.max_nodes, host=node.host)

    def begin(self, on_event: OnEvent) -> None:
        """Whom to tell."""
        self._on_event = on_event

    def end(self) -> None:
        """Tell nothing any more and give the ports back."""
        self._over = True
        self._clear_deadline()
        self._ports.close()

    # --- what the agent asks ------------------------------------------------------------------------------------------

    def ask(self, joining: Joining) -> bool:
        """Ask for a generation; ``False`` when no port can be had, which the agent then hears of."""
        self._joining = joining
        self.standing = replace(self.standing, asked=joining.generation)
        try:
            self._ports.prepare()
        except OSError as error:
            self.fail_soon(f"no port for the store: {error.strerror}")
            return False
        self._set_deadline()
        return True

    def announce(self, generation: int, reason: str) -> FailureRecord:
        """The record of a failure of this node."""
        self._announced = max(self._announced, generation)
        return self.failure(generation, FailureKind.FAILED, reason)

    def finish(self, generation: int) -> None:
        """All ranks of this node succeeded, and it waits for the others; to be followed by :meth:`hear`."""
        self.standing = self.standing.finishing(generation)

    def record(self, address: str, peer_port: int) -> NodeRecord | None:
        """This node as the leader shall see it; ``None`` before it asked for anything."""
        joining, node = self._joining, self._node
        if joining is None:
            return None
        return NodeRecord(
            node_id=node.node_id,
            host=node.host,
            pid=node.pid,
            address=address,
            peer_port=peer_port,
            slots=joining.slots,
            master_port=self._ports.upcoming,
            order=node.node_rank,
            asked=self.standing.asked,
            counted=joining.counted,
            settings_digest=self._wanted.digest_of(node),
            offers=joining.offers,
        )

    def owed_word(self, view: View) -> FailureRecord | None:
        """Who asks for the next generation while the current one runs for all others must tell them why."""
        seated, joining = self.standing.seated, self._joining
        fenced, self._fenced = self._fenced, False
        if joining is None or seated is None or view.table is None or view.table.generation != seated:
            return None
        if view.failure is not None or self._announced >= seated or joining.generation <= seated:
            return None
        if fenced:
            return self.failure(seated, FailureKind.LOST, "it lost its lease and stopped its workers", False)
        return self.failure(seated, FailureKind.ASKED, "a new generation is wanted", joining.counted)

    def farewell(self, view: View, generation: int, reason: str) -> FailureRecord | None:
        """What the others must know when this node leaves; ``None`` when nobody counts on it."""
        if self.standing.seated != generation or view.failure is not None or view.closed is not None:
            return None
        return self.failure(generation, FailureKind.LEFT, reason)

    def failure(self, generation: int, kind: FailureKind, reason: str, counted: bool = True) -> FailureRecord:
        """A record that names this node."""
        return FailureRecord(generation, kind, self._node.node_id, self._node.host, reason, new_attempt(), counted)

    # --- what the agent hears -----------------------------------------------------------------------------------------

    @property
    def counts_on_us(self) -> bool:
        """Whether workers of this node may be running that the others count on."""
        return self.standing.seated is not None and self.standing.asked is None

    @property
    def parked(self) -> bool:
        """Whether this node waits as a spare, for as long as the job runs without it."""
        return self.standing.asked is not None and self._deadline is None

    def hear(self, view: View) -> tuple[RendezvousEvent, ...]:
        """Tell the agent what is new in a view; returns what it was told."""
        if self._over:
            return ()
        self.standing, events = follow(view, self.standing)
        told = tuple(self._tell(event) for event in events)
        if self.standing.asked is not None and view.failure is not None and self._deadline is None:
            # A parked spare has no deadline while the job runs without it.
            self._set_deadline()
        return told

    def tell(self, event: RendezvousEvent) -> None:
        """Tell the agent something that changes nothing about this node's part."""
        self._emit(event)

    def fence(self, reason: str) -> None:
        """The lease cannot be trusted any more: the workers must stop."""
        seated = self.standing.seated
        if seated is None or self.standing.told_closed:
            return
        self._fenced = True
        if self.standing.told_failed < seated:
            self.standing = replace(self.standing, told_failed=seated)
            self._emit(LeaseLost(seated, reason))

    def end_here(self, reason: str) -> None:
        """This agent was started wrongly; the job goes on without it."""
        if not self.standing.told_closed:
            self.standing = replace(self.standing, told_closed=True)
            self._clear_deadline()
            self._emit(Closed(2, reason))

    def fail(self, reason: str) -> None:
        """What was asked for will not come."""
        asked = self.standing.asked
        if asked is not None and not self.standing.told_closed:
            self.standing = replace(self.standing, asked=None)
            self._clear_deadline()
            self._emit(JoinFailed(asked, reason))

    def fail_soon(self, reason: str) -> None:
        """As :meth:`fail`, but not from within the agent's own call."""
        asyncio.get_running_loop().call_soon(self.fail, reason)

    def crash(self, reason: str) -> None:
        """Something unexpected ended what this node's place in the job depends on."""
        if self.counts_on_us:
            self.fence(f"internal error: {reason}")
        else:
            self.fail(f"internal error: {reason}")

    def _tell(self, event: RendezvousEvent) -> RendezvousEvent:
        if isinstance(event, WorldAgreed):
            self._ports.agreed(event.world.group_rank == 0)
            self._fenced = False
        if isinstance(event, (WorldAgreed, Parked, Closed, Excluded)):
            self._clear_deadline()
        if isinstance(event, Closed) and self.standing.seated is None:
            event = replace(event, reason=f"job {self._wanted.job_id} has ended: {event.reason}")
        self._emit(event)
        return event

    def _emit(self, event: RendezvousEvent) -> None:
        if self._on_event is not None and not self._over:
            self._on_event(event)

    # --- how long it waits --------------------------------------------------------------------------------------------

    def _set_deadline(self) -> None:
        self._clear_deadline()
        limit_s = self._wanted.join_timeout_s
        self._deadline = asyncio.get_running_loop().call_later(limit_s, self._deadline_passed)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        self._deadline = None
        wanted = self._wanted
        why = self._why() or "too few came"
        least, most = wanted.min_nodes, wanted.max_nodes
        nodes = f"{least} to {most} nodes" if least < most else f"{most} node" + ("" if most == 1 else "s")
        self.fail(f"not agreed within {wanted.join_timeout_s:g} s on {nodes}: {why}")
