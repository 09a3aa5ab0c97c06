"""Any order of events that can happen: no undefined pair, no actions that contradict, and always an end after a stop.

The agent's surroundings are played: ranks, teardown, GPUs, back-off, and a rendezvous that keeps the promises of
``rendezvous/interface.py``. What they answer comes late and in any order; everything else comes unasked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.launcher.decision import actions as do
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.decide import decide
from ftlaunch.launcher.decision.generations import GenerationRecord
from ftlaunch.launcher.decision.policy import Verdict
from ftlaunch.launcher.decision.state import Phase, State
from ftlaunch.rendezvous import interface as rdzv

SLOTS = 2
WORDS = LastWords("ValueError", "bad", "Traceback…", "train.py:3", step=7)


class Surroundings:
    """Carries out actions, and checks that they make sense together and one after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.state = State(
            slots=SLOTS,
            preempt_signals=frozenset(self.random.choice([(), (10,)])),
            joins_late=self.random.random() < 0.5,
            grow=self.random.choice(["immediately", "at-checkpoint", "never"]),
        )
        self.answers: list[ev.Event] = []
        self.exits: list[do.Exit] = []
        self.gives_up = True
        # The ranks of this node.
        self.alive: int | None = None
        self.running: set[int] = set()
        self.tearing_down = -1
        # What the rendezvous knows of this node.
        self.asked: int | None = None
        self.seated = -1
        self.told_over = -1
        self.left = False
        self.tell(ev.Started())

    def judge(self, history: tuple[GenerationRecord, ...], now: float) -> Verdict:
        if self.gives_up and self.random.random() < 0.1:
            return Verdict(False, "used up", exit_code=self.random.choice([None, 76]))
        return Verdict(True, "go on", delay_s=self.random.choice([0.0, 0.0, 4.0]))

    def tell(self, event: ev.Event) -> None:
        self.now += self.random.choice([0.0, 0.1, 1.0])
        done = self.state.phase is Phase.DONE
        decision = decide(self.state, event, self.now, self.judge)
        self.state = decision.state
        assert decision.reason
        acting = [action for action in decision.actions if not isinstance(action, do.Record)]
        assert not (done and acting), f"acts after its end: {acting}"
        require_consistent(acting)
        for action in acting:
            self.perform(action)

    def perform(self, action: do.Action) -> None:
        if isinstance(action, do.StartWorkers):
            self.start(action.world.generation)
        elif isinstance(action, do.StopWorkers):
            assert action.generation == self.alive or self.alive is None, "stops what is not there"
            if self.tearing_down != action.generation or self.alive is None:
                gone = ev.WorkersGone(action.generation)
                unkillable = ev.WorkersUnkillable(action.generation, "x")
                self.answers.append(unkillable if self.gives_up and self.random.random() < 0.03 else gone)
                self.tearing_down = action.generation
        elif isinstance(action, do.Reclaim):
            assert self.alive is None, "waits for GPUs that are in use"
            self.answers.append(ev.Reclaimed(action.generation))
        elif isinstance(action, do.Join):
            assert action.joining.generation > self.told_over, "asks for what is over"
            self.asked, self.left = action.joining.generation, False
        elif isinstance(action, do.WakeAt):
            self.answers.append(ev.BackoffOver(action.generation))
        elif isinstance(action, do.Leave):
            self.left = True
            self.answers.append(ev.Left(action.exit_code))
        elif isinstance(action, do.Exit):
            self.exits.append(action)

    def start(self, generation: int) -> None:
        assert self.alive is None, "two generations alive"
        assert generation == self.seated > self.told_over, "starts what is over, or was never agreed on"
        self.alive, self.running = generation, set(range(SLOTS))
        # In the order in which the crew says it; what happens to ranks comes after that.
        self.tell(ev.WorkersStarted(generation, (1, 2)))

    def unasked(self) -> list[ev.Event]:
        """What may happen now without an action of ours before it."""
        g = max(0, self.state.generation)
        found: list[ev.Event] = [
            ev.CheckpointSaved(g),
            ev.RestartRequested(g, "x"),
            ev.FirstBeat(g),
            rdzv.Parked(g, "spare"),
        ]
        if self.gives_up and self.random.random() < 0.1:
            found = [ev.StopRequested(g, "x", self.random.choice([None, 0])), ev.NodeUnhealthy(g, "x")]
            return [*found, *map(ev.SignalReceived, (2, 10, 15)), rdzv.Closed(76, "x"), rdzv.Excluded("x")]
        if self.alive is not None:
            for rank in self.running:
                found += [ev.WorkerExited(g, rank, code, 1.0, own=own) for code in (0, 1, -9) for own in (True, False)]
                found += [ev.WorkerFailing(g, rank, WORDS), ev.WorkerStalled(g, rank, "silent", "x")]
        if self.asked is not None:
            # Its own generation is over for it: it hears of the next one, or that there is none.
            world = make_world(max(self.asked, self.seated + 1) + self.random.choice([0, 0, 0, 2]))
            found += [rdzv.WorldAgreed(world)] * 4
            found += [rdzv.JoinFailed(self.asked, "x")] if self.gives_up and self.random.random() < 0.1 else []
        elif self.seated > self.told_over:
            found += self.ends_of(self.seated)
        return found

    def ends_of(self, generation: int) -> list[ev.Event]:
        return [
            rdzv.PeerFailed(generation, "b", "x"),
            rdzv.LeaseLost(generation, "x"),
            rdzv.MembershipChanged(generation, 0, "b asks"),
            rdzv.MembershipChanged(generation, 1, "c waits"),
        ]

    def happen(self, event: ev.Event) -> None:
        if isinstance(event, rdzv.WorldAgreed):
            self.seated, self.asked = event.world.generation, None
        elif isinstance(event, rdzv.JoinFailed):
            self.asked = None
        elif isinstance(event, (rdzv.PeerFailed, rdzv.LeaseLost)) or (
            isinstance(event, rdzv.MembershipChanged) and not event.waiting
        ):
            # Once: nothing more is heard of it before this node asks for a later one.
            self.told_over = event.generation
        elif isinstance(event, ev.WorkerExited):
            self.running.discard(event.local_rank)
        self.tell(event)

    def answer(self) -> None:
        event = self.answers.pop(self.random.randrange(len(self.answers)))
        if isinstance(event, ev.WorkersGone) and event.generation == self.alive:
            for rank in sorted(self.running):
                self.happen(ev.WorkerExited(event.generation, rank, -9, 1.0, own=False))
            self.alive = None
        if isinstance(event, ev.BackoffOver):
            self.now += 4.0
        self.tell(event)

    def settle(self) -> None:
        """Everything is answered, nothing goes wrong any more, and nodes that are asked for come."""
        for _ in range(50):
            if self.answers:
                self.answer()
            elif self.asked is not None and not self.left:
                self.happen(rdzv.WorldAgreed(make_world(max(self.asked, self.seated + 1))))
            else:
                return
        raise AssertionError("it never comes to rest")


def make_world(generation: int) -> rdzv.World:
    member = rdzv.Member("a", "localhost", 0, SLOTS)
    return rdzv.World(generation, (member,), 0, 0, SLOTS, "localhost", 1000 + generation, 0, "run")


def require_consistent(actions: Sequence[do.Action]) -> None:
    """Nothing twice, and nothing together with its opposite."""
    kinds = [type(action) for action in actions]
    assert len(set(kinds)) == len(kinds), f"twice: {kinds}"
    for one, others in {
        do.StartWorkers: {do.StopWorkers, do.Reclaim, do.Join, do.Leave, do.Exit, do.Announce, do.WakeAt},
        do.Join: {do.Leave, do.Exit},
        do.Leave: {do.Exit, do.StopWorkers, do.Reclaim},
        do.Exit: {do.StopWorkers, do.Reclaim},
    }.items():
        assert one not in kinds or not others.intersection(kinds), f"contradict each other: {kinds}"
    concluded = [action for action in actions if isinstance(action, do.Conclude)]
    assert all(action.restart for action in concluded) or do.Join not in kinds, "joins although no restart follows"


STOPS = [ev.SignalReceived(15), ev.SignalReceived(2), rdzv.Closed(76, "x"), ev.StopRequested(10**6, "x")]


@pytest.mark.parametrize("stop", STOPS, ids=repr)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 60))
def test_any_order_of_events_keeps_the_rules_and_a_stop_always_ends(stop: ev.Event, seed: int, length: int) -> None:
    subject = lived(seed, length)
    subject.tell(stop)
    subject.settle()
    assert len(subject.exits) == 1 and subject.state.phase is Phase.DONE


@given(seed=st.integers(0, 2**32), length=st.integers(0, 60))
def test_after_any_order_of_faults_a_generation_runs_that_is_not_over(seed: int, length: int) -> None:
    subject = lived(seed, length, gives_up=False)
    subject.settle()
    if subject.state.phase is Phase.DONE:
        assert [end.exit_code for end in subject.exits] == [0], "nobody asked for an end but all ranks that succeeded"
        return
    assert subject.state.phase is Phase.RUNNING, subject.state
    assert subject.alive == subject.state.generation == subject.seated > subject.told_over


def lived(seed: int, length: int, gives_up: bool = True) -> Surroundings:
    """Surroundings in which so much has happened."""
    subject = Surroundings(seed)
    subject.gives_up = gives_up
    for _ in range(length):
        if subject.answers and subject.random.random() < 0.5:
            subject.answer()
        else:
            subject.happen(subject.random.choice(subject.unasked()))
    return subject
