"""Leader and nodes of a made-up job, in any order of what can happen to them: the rules hold, and it goes on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.rendezvous.common.decide import (
    Agree,
    DeclareEnded,
    DeclareLost,
    Finish,
    Grow,
    Limits,
    Roster,
    Standing,
    View,
    Wait,
    follow,
    is_available,
    lead,
)
from ftlaunch.rendezvous.common.leading import Round, table_of
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureKind,
    FailureRecord,
    GrowthRecord,
    NodeRecord,
)
from ftlaunch.rendezvous.common.table import Node
from ftlaunch.rendezvous.interface import (
    Closed,
    Excluded,
    Exclusion,
    MembershipChanged,
    Parked,
    PeerFailed,
    RendezvousEvent,
    WorldAgreed,
)

NAMES = "abcde"
LAST_CALL_S = 30.0


@dataclass
class Agent:
    """One node: what it is, what it asks for, what it was told."""

    standing: Standing
    since: int
    heard: list[RendezvousEvent] = field(default_factory=list)
    clears: bool = False
    """Heard of the end of its generation, and asks for the next one when its ranks are gone."""

    @property
    def node(self) -> Node:
        name = self.standing.node_id
        return Node(NodeRecord(name, f"h-{name}", 1, "addr", 7, 1, asked=self.standing.asked, counted=True), self.since)


class Meeting:
    """What stands in etcd, the agents, and the leader."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        least = self.random.randint(1, 3)
        self.limits = Limits(least, self.random.randint(least, 4), LAST_CALL_S)
        self.now, self.arrivals = 0.0, 0
        self.view, self.round = View(), Round()
        self.agents: dict[str, Agent] = {}
        self.finished: dict[str, int] = {}

    # -- what happens ---------------------------------------------------------------------------------------------

    def happen(self) -> None:
        rare = [self.arrive, self.die, self.fail, self.ask, self.finish, self.wait, self.exclude, self.readmit]
        rare.append(self.finish_unheard)
        self.random.choice([*rare, *[self.turn] * 6, self.clear])()

    def arrive(self) -> None:
        name, table = self.random.choice(NAMES), self.view.table
        # An agent's id is its own: none comes back into the seat of one that died.
        if name not in self.agents and (table is None or table.rank_of(name) is None):
            self.arrivals += 1
            self.agents[name] = Agent(
                Standing(name, "run", self.limits.max_nodes, asked=0, host=f"h-{name}"), self.arrivals
            )
            self.finished.pop(name, None)

    def die(self) -> None:
        if self.agents:
            del self.agents[self.random.choice(sorted(self.agents))]

    def fail(self) -> None:
        agent = self.working()
        if agent is not None:
            self.put_failure(FailureKind.FAILED, agent.standing.node_id)
            self.join(agent)

    def ask(self) -> None:
        """Asks for the next generation, and its word about why gets lost."""
        agent = self.working()
        if agent is not None:
            self.join(agent)

    def exclude(self) -> None:
        if self.agents and self.random.random() < 0.3:
            exclusion = Exclusion(f"h-{self.random.choice(sorted(self.agents))}", "", "x")
            self.set_excluded({*self.view.excluded.entries, exclusion})

    def readmit(self) -> None:
        self.set_excluded(set(self.view.excluded.entries[1:]))

    def set_excluded(self, entries: set[Exclusion]) -> None:
        record = ExclusionsRecord(self.view.excluded.revision + 1, tuple(sorted(entries, key=lambda one: one.name)))
        self.view = replace(self.view, excluded=record)

    def clear(self) -> None:
        for agent in self.agents.values():
            if agent.clears:
                self.join(agent)

    def finish(self) -> None:
        agent = self.working()
        if agent is not None and self.view.table is not None:
            self.finished[agent.standing.node_id] = self.view.table.generation
            agent.standing = agent.standing.finishing(self.view.table.generation)

    def finish_unheard(self) -> None:
        """Cut off while it finishes, and given up; then the cut heals."""
        agent = self.working()
        if agent is not None and self.view.table is not None:
            agent.standing = agent.standing.finishing(self.view.table.generation)
            self.put_failure(FailureKind.LOST, agent.standing.node_id)

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 1.0, LAST_CALL_S])

    def turn(self) -> None:
        self.random.choice([self.decide, self.hear])()

    def working(self) -> Agent | None:
        """A member of the running generation whose ranks run."""
        table = self.view.table
        if table is None or self.view.failure is not None or self.view.closed is not None:
            return None
        found = [agent for agent in self.agents.values() if agent.standing.seated == table.generation]
        found = [
            agent for agent in found if agent.standing.asked is None and agent.standing.node_id not in self.finished
        ]
        return self.random.choice(found) if found else None

    def join(self, agent: Agent) -> None:
        agent.standing = replace(agent.standing, asked=(agent.standing.seated or 0) + 1)
        self.finished.pop(agent.standing.node_id, None)
        agent.clears = False

    # -- what is decided ------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """One turn of the leader. Each step is carried out at once, as far as nobody was quicker."""
        nodes = {name: agent.node for name, agent in self.agents.items()}
        roster = Roster(nodes, dict(self.finished))
        self.round = self.round.seen(self.view, roster, self.now)
        decision = lead(self.view, roster, self.limits, self.round.timing, self.now)
        step, table = decision.step, self.view.table
        assert decision.reason
        if self.view.closed is not None:
            assert step == Wait()
        elif isinstance(step, Agree):
            self.agree(step, nodes)
        elif isinstance(step, DeclareLost):
            assert table is not None and self.view.failure is None
            assert set(step.node_ids) <= {seat.node_id for seat in table.seats} - set(nodes)
            self.put_failure(FailureKind.LOST, step.node_ids[0])
        elif isinstance(step, DeclareEnded):
            self.put_failure(FailureKind.ASKED, step.node_id)
        elif isinstance(step, Finish):
            assert table is not None and {s.node_id for s in table.seats} <= set(self.finished)
            self.view = replace(self.view, closed=ClosedRecord(0, "all finished", "a", "h-a", "c"))
        elif isinstance(step, Grow):
            growth = GrowthRecord(step.generation, step.waiting, "more")
            assert growth != self.view.growth, "told twice"
            self.view = replace(self.view, growth=growth)
        else:
            assert step.until is None or step.until > self.now, "waits for what has passed"

    def agree(self, step: Agree, nodes: dict[str, Node]) -> None:
        table = self.view.table
        names = [node.node_id for node in step.nodes]
        assert table is None or (self.view.failure is not None and step.generation > table.generation)
        assert len(set(names)) == len(names) and self.limits.min_nodes <= len(names) <= self.limits.max_nodes
        assert all(is_available(nodes[name], self.view) for name in names)
        self.view = replace(self.view, table=table_of(step, {}, {}), growth=None)

    def put_failure(self, kind: FailureKind, who: str) -> None:
        assert self.view.table is not None
        generation = self.view.table.generation
        assert generation not in self.view.failures, "the first to say it wins"
        record = FailureRecord(generation, kind, who, f"h-{who}", "boom", "f")
        self.view = replace(self.view, failures={**self.view.failures, generation: record})

    # -- what is heard --------------------------------------------------------------------------------------------

    def hear(self) -> None:
        if self.agents:
            self.tell(self.agents[self.random.choice(sorted(self.agents))])

    def tell(self, agent: Agent) -> None:
        before = agent.standing
        agent.standing, events = follow(self.view, agent.standing)
        assert len(events) <= 1
        for event in events:
            self.require_new(agent, before, event)
            agent.heard.append(event)
            if isinstance(event, Excluded):
                # Its ranks are stopped, and it leaves.
                del self.agents[agent.standing.node_id]
                continue
            ends = not isinstance(event, (WorldAgreed, Parked, Closed))
            if agent.standing.finished == agent.standing.seated:
                # An agent that waits at the end leaves it for nothing else.
                ends = isinstance(event, PeerFailed)
            agent.clears = ends and not (isinstance(event, MembershipChanged) and event.waiting)

    def require_new(self, agent: Agent, before: Standing, event: RendezvousEvent) -> None:
        assert not any(isinstance(each, Closed) for each in agent.heard), "hears something after the end"
        assert event not in agent.heard, "hears the same twice"
        if isinstance(event, WorldAgreed):
            world = event.world
            former = [each.world.generation for each in agent.heard if isinstance(each, WorldAgreed)]
            assert before.asked is not None and world.generation >= before.asked
            assert all(world.generation > generation for generation in former)
            assert world.members[world.group_rank].node_id == before.node_id
        elif not isinstance(event, (Parked, Closed, Excluded)):
            assert event.generation == before.seated and before.asked is None, "is no business of this node"

    def settle(self) -> None:
        """Nothing goes wrong any more; time passes."""
        for _ in range(12):
            for _ in range(3):
                self.decide()
            for agent in list(self.agents.values()):
                self.tell(agent)
            self.clear()
            self.now += LAST_CALL_S / 2


def lived(seed: int, length: int) -> Meeting:
    meeting = Meeting(seed)
    for _ in range(length):
        meeting.happen()
    return meeting


@given(seed=st.integers(0, 2**32), length=st.integers(0, 120))
def test_whatever_happens_all_members_of_a_generation_come_to_know_it_or_its_end(seed: int, length: int) -> None:
    meeting = lived(seed, length)
    meeting.settle()
    view, agents = meeting.view, meeting.agents
    if view.closed is not None:
        assert all(agent.standing.told_closed for agent in agents.values())
        return
    for agent in agents.values():
        runs = view.failure is None and view.table is not None and agent.standing.seated == view.table.generation
        assert runs or agent.standing.asked is not None, "neither in a running generation nor asks for one"
    if view.table is None or view.failure is not None:
        waiting = [agent for agent in agents.values() if is_available(agent.node, view)]
        assert len(waiting) < meeting.limits.min_nodes, "enough are there, and nothing is agreed on"
        return
    for seat in view.table.seats:
        assert view.excluded.of(seat.node_id, seat.host) is None or seat.node_id in meeting.finished
        if seat.node_id in agents:
            standing = agents[seat.node_id].standing
            assert (standing.seated, standing.asked) == (view.table.generation, None)
        else:
            assert seat.node_id in meeting.finished


@given(seed=st.integers(0, 2**32), length=st.integers(0, 120))
def test_once_the_job_is_over_nothing_is_decided_and_each_hears_of_it_once(seed: int, length: int) -> None:
    meeting = lived(seed, length)
    meeting.view = replace(meeting.view, closed=ClosedRecord(76, "over", "a", "h-a", "c"))
    before = meeting.view
    meeting.settle()
    assert meeting.view == before
    for agent in meeting.agents.values():
        assert sum(isinstance(event, Closed) for event in agent.heard) == 1
