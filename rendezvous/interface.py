"""What the agent asks of a rendezvous, whatever the backend: agree on the members and ranks of the next generation.

Requests return at once; results arrive as events through the callback given to :meth:`Rendezvous.start`, always on the
agent's event loop. An event that speaks of a generation carries its number; the agent drops what is older than its own.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Union


class RendezvousError(Exception):
    """The rendezvous cannot be reached or used. One line for the user; the agent ends with code 69."""


class SettingsError(RendezvousError):
    """The rendezvous settings are wrong (endpoint, certificate, password). The agent ends with code 2."""


class Member(NamedTuple):
    """One node of a world. ``group_rank`` is its place in the node order."""

    node_id: str
    host: str
    group_rank: int
    slots: int
    """Ranks on this node."""


@dataclass(frozen=True)
class World:
    """One agreed generation, as one node sees it. ``rank_offset`` is the global rank of its local rank 0."""

    generation: int
    members: tuple[Member, ...]
    group_rank: int
    rank_offset: int
    world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    """Restarts that count against the budget so far; what workers see as TORCHELASTIC_RESTART_COUNT."""
    run_id: str
    shared: Mapping[str, Any] = field(default_factory=dict)
    """What the leader made of all offers: the resume point."""


@dataclass(frozen=True)
class Joining:
    """What a node brings to the next generation. ``counted``: this restart counts against the budget."""

    generation: int
    slots: int
    counted: bool = True
    offers: Mapping[str, Any] = field(default_factory=dict)
    """What this node knows for it: its view of the checkpoints."""


@dataclass(frozen=True)
class Exclusion:
    """A node that is left out. ``name``: its host, or a node id where several agents share that host."""

    name: str
    reason: str
    by: str
    """The host on which it was asked for."""

    @property
    def said(self) -> str:
        """As a predicate, to follow the name."""
        return f"excluded with ftctl on {self.by}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class ExclusionWish:
    """``node`` is a node id or a host name. ``undo``: let it in again; ``force``: also when too few would be left."""

    node: str
    reason: str = ""
    undo: bool = False
    force: bool = False


@dataclass(frozen=True)
class ExclusionAnswer:
    """What became of a wish: which node it was about, and what follows, in one sentence."""

    name: str
    effect: str
    changed: bool = True


@dataclass(frozen=True)
class WorldAgreed:
    """The next generation stands."""

    world: World


@dataclass(frozen=True)
class Parked:
    """The job is complete without this node: it waits as a spare. Sent once per generation."""

    generation: int
    reason: str


@dataclass(frozen=True)
class PeerFailed:
    """Another node announced that this generation failed, or a member's lease ended.

    Who waits at the end hears this however its generation ended, also when it was given up itself: it is needed again.
    """

    generation: int
    node_id: str
    reason: str


@dataclass(frozen=True)
class MembershipChanged:
    """The others want a new generation: ``waiting`` nodes wait to be taken in; 0: a member asks for one."""

    generation: int
    waiting: int
    reason: str


@dataclass(frozen=True)
class LeaseLost:
    """This node can no longer prove that it belongs to the generation: its workers must stop now (fencing)."""

    generation: int
    reason: str


@dataclass(frozen=True)
class Closed:
    """The job is over for everybody. ``exit_code`` is what every agent ends with."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class Excluded:
    """The job goes on without this node: its workers must stop and its agent leaves. Sent once."""

    reason: str


@dataclass(frozen=True)
class JoinFailed:
    """The next generation could not be agreed on in time, or the backend gave up."""

    generation: int
    reason: str


@dataclass(frozen=True)
class Lesson:
    """What the running ranks had imported by their first step, and the environment they changed before: for spares."""

    names: Sequence[str]
    environment: Mapping[str, str | None]


Publish = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
"""Run on the leader: what to share with all, from what each member offered, in group rank order. Pure and quick."""

RendezvousEvent = Union[
    WorldAgreed, Parked, PeerFailed, MembershipChanged, LeaseLost, Closed, Excluded, JoinFailed, Lesson
]
OnEvent = Callable[[RendezvousEvent], None]


class Outcome(enum.Enum):
    """How a node leaves: its ranks all succeeded, it just goes away, or the job has failed for good."""

    FINISHED = "finished"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True)
class Question:
    """What one agent wants to know of all other members of its generation. The rest is the agents' own affair."""

    generation: int
    topic: str
    detail: str = ""


@dataclass(frozen=True)
class Answers:
    """What the other members said, by node id, as far as it could be read.

    ``missing``: the node ids of members that said nothing in time. ``refused``: answers that made no sense, or were
    too large.
    """

    said: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    refused: int = 0


Conclude = Callable[[Answers], Mapping[str, Any]]
"""Run by who asked: what to tell all members, made of the answers. Pure and quick."""


class Respondent(Protocol):
    """Speaks for a node. Called on the agent's loop."""

    async def answer(self, question: Question) -> Mapping[str, Any] | None:
        """A JSON object of at most some 100 kB; ``None``: nothing to say. Must not raise."""

    def learn(self, question: Question, outcome: Mapping[str, Any]) -> None:
        """What came of a question that was asked within the last seconds, as another agent says: not to be trusted."""


class Rendezvous(Protocol):
    """One node's view of the meeting point. No method blocks the event loop."""

    def start(self, on_event: OnEvent) -> None:
        """Connect in the background. Raises :class:`SettingsError` for what is wrong before any connection."""

    def join(self, joining: Joining) -> None:
        """Ask for the next generation; :class:`WorldAgreed`, :class:`Parked` or :class:`JoinFailed` follows."""

    def announce_failure(self, generation: int, reason: str) -> None:
        """Tell all other nodes that this generation failed here. The first one to say it wins."""

    def tell_trust(self, listener: Callable[[float], None]) -> None:
        """Call it, from any thread, whenever the moment moves at which this node's ranks must be gone at the latest.

        Before :meth:`start`. CLOCK_BOOTTIME seconds, after :class:`LeaseLost` and before the others may go on; 0.0 for
        never. For whoever stops the ranks of an agent that does not.
        """

    def check_lease(self) -> None:
        """Tell :class:`LeaseLost` now if it is time, also where that was missed. Costs a look at the clock."""

    def respond_with(self, respondent: Respondent) -> None:
        """Who speaks for this node from now on. Without one no question is answered."""

    async def ask(self, question: Question, limit_s: float, conclude: Conclude | None = None) -> Answers | None:
        """Ask all other members; returns when all have answered, at the latest a moment after ``limit_s``.

        With ``conclude`` all members learn the outcome, this one too, through :meth:`Respondent.learn`; of such
        questions only one of each topic is asked at a time in the whole job. ``None``: it was not asked, because the
        generation is not the present one, the meeting point cannot be reached, or another member asks the same: then
        its outcome was waited for.
        """

    def teach(self, lesson: Lesson) -> None:
        """Leave it with the job for spares, which hear it as an event, now or when they come. Lost without harm."""

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """All nodes that are left out of the job, as far as this node has heard."""

    async def exclude(self, wish: ExclusionWish) -> ExclusionAnswer:
        """Leave a node out of this and all later generations, or let it in again; takes a few seconds at most.

        Raises :class:`RendezvousError` with the reason when nothing was changed.
        """

    async def finish(self, generation: int, outcome: Outcome, exit_code: int, reason: str, timeout_s: float) -> int:
        """Leave; with ``FINISHED`` wait for the other nodes, and ``timeout_s`` for a meeting point out of reach.

        Returns the job's exit code.
        """

    async def close(self) -> None:
        """Release everything: threads, sockets, leases. Returns within a few seconds whatever the server does."""
