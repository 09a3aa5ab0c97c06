"""What ranks of other nodes have to do with a silence here: accounts, surveys, and what follows from them."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat.watching import elsewhere
from ftlaunch.heartbeat.watching.elsewhere import Account, RankAccount, Survey
from ftlaunch.heartbeat.watching.limits import EVAL, STEP
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.stackread import Frame, StackSnapshot, ThreadStack
from ftlaunch.heartbeat.watching.suspects import RankEvidence
from ftlaunch.heartbeat.watching.verdicts import SILENT, Stall
from ftlaunch.heartbeat.watching.watch import Watch
from ftlaunch.launcher.config import HeartbeatConfig
from ftlaunch.launcher.hearing.consultation import Consultation
from ftlaunch.launcher.hearing.stacks import Findings
from ftlaunch.rendezvous.interface import World
from support.beats import FIRST_PID, Speaker

STEP_S = 0.1
FLOOR_S = 3.0
WAIT = (
    Frame("/x/site-packages/torch/distributed/distributed_c10d.py", 3094, "all_reduce"),
    Frame("/job/train.py", 20, "main"),
)
SPIN = (Frame("/job/train.py", 88, "spin"), Frame("/job/train.py", 20, "main"))


class Node:
    """One agent's side. Ranks are numbered from ``first``."""

    def __init__(self, first: int, ranks: int = 2, **options: Any) -> None:
        self.watch = Watch(HeartbeatConfig(**{"floor_s": FLOOR_S, **options}))
        pids = [FIRST_PID + first + rank for rank in range(ranks)]
        self.watch.begin(0, pids, 0.0, first)
        self.speakers = [Speaker(rank, pid) for rank, pid in enumerate(pids)]
        self.switches = 0

    def states(self) -> dict[int, ProcState]:
        return {rank: ProcState(pid, "S", switches=self.switches) for rank, pid in self.watch.pids().items()}

    def stall(self, start: float, end: float) -> tuple[float, Stall | None]:
        """Judge at every deadline until there is a stall."""
        now = start
        while True:
            assessment = self.watch.assess(self.states(), now)
            if assessment.stalls or assessment.next_deadline > end:
                return now, assessment.stalls[0] if assessment.stalls else None
            now = assessment.next_deadline

    def account(self, now: float, *stacks: tuple[Frame, ...]) -> Account:
        """As the others get it."""
        account = self.watch.account(self.states(), now)
        found = [
            RankEvidence(one.evidence.rank, snapshot(frames), "S")
            for one, frames in zip(account.ranks, stacks, strict=False)
        ]
        said = json.loads(json.dumps(elsewhere.to_json(elsewhere.with_stacks(account, found)), allow_nan=False))
        return elsewhere.from_json(said)


def snapshot(frames: tuple[Frame, ...]) -> StackSnapshot:
    return StackSnapshot((ThreadStack("main", frames, "MainThread"),)) if frames else StackSnapshot()


def train(*nodes: Node, steps: int = 60, start: float = 0.0) -> float:
    now = start
    for _ in range(steps):
        now += STEP_S
        for node in nodes:
            for speaker in node.speakers:
                node.watch.hear(speaker.tick(now))
    return now


def told(found: Survey) -> Survey:
    """As the others get it."""
    return elsewhere.survey_from_json(json.loads(json.dumps(elsewhere.survey_to_json(found), allow_nan=False)))


def silence(a: Node, now: float) -> tuple[float, Stall]:
    at, stall = a.stall(now, now + 60)
    assert stall is not None and stall.learnt and at == pytest.approx(now + FLOOR_S, abs=0.05)
    return at, stall


def asked(stall: Stall, *accounts: Account, complete: bool = True) -> Survey:
    return told(elsewhere.survey(stall, 0, accounts, complete))


# -- excuses --------------------------------------------------------------------------------------------------------


def test_while_a_rank_elsewhere_is_in_a_section_within_its_limit_nobody_is_judged() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    b.watch.hear(b.speakers[1].open(EVAL, now))
    for _ in range(5):
        at, stall = silence(a, now)
        survey = asked(stall, a.account(at), b.account(at))
        assert survey.section == "rank 3 is in section eval" and not survey.suspects
        assert a.watch.heed(survey, at) is None
        now = at
    # The wait for it teaches nothing about steps.
    train(a, start=now)
    assert a.watch.limits.longest_s(STEP) == pytest.approx(STEP_S)


def test_a_section_beyond_its_limit_excuses_nobody_and_its_rank_is_the_suspect() -> None:
    a, b = Node(0, section_timeouts_s={EVAL: 2.0}), Node(2, section_timeouts_s={EVAL: 2.0})
    now = train(a, b)
    b.watch.hear(b.speakers[0].open(EVAL, now))
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at, WAIT, WAIT), b.account(at, WAIT, WAIT))
    assert not survey.section and survey.suspects == (2,)


def test_a_section_left_a_moment_ago_counts_from_then() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    b.watch.hear(b.speakers[0].open(EVAL, now))
    b.watch.hear(b.speakers[0].close(now + 2.0))
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at), b.account(at))
    assert survey.changed_s == pytest.approx(1.0, abs=0.1) and not survey.suspects
    assert a.watch.heed(survey, at) is None
    assert a.stall(at, now + 60)[0] == pytest.approx(now + 2.0 + FLOOR_S, abs=0.1)


def test_while_a_rank_elsewhere_works_a_learnt_limit_ends_nobody_but_the_given_one_does() -> None:
    a, b = Node(0, hang_timeout_s=10.0), Node(2)
    now = began = train(a, b)
    while True:
        at, stall = a.stall(now, now + 60)
        assert stall is not None
        if not stall.learnt or at >= began + 10.0 - 0.05:
            break
        b.watch.look(b.states(), at - 2.0)
        b.switches += 1000
        survey = asked(stall, a.account(at), b.account(at))
        assert survey.works and not survey.suspects
        a.watch.heed(survey, at)
        now = at
    assert at == pytest.approx(began + 10.0, abs=0.1)
    assert not a.watch.be_patient(stall, survey, at)


@pytest.mark.parametrize("floor_s", [3.0, 5.0], ids=["after a learnt one", "alone"])
def test_beyond_a_given_limit_the_suspect_is_named_although_the_others_poll(floor_s: float) -> None:
    a, b = Node(0, hang_timeout_s=5.0, floor_s=floor_s), Node(2, hang_timeout_s=5.0, floor_s=floor_s)
    now = began = train(a, b)
    poll = (Frame("/job/train.py", 40, "barrier"), Frame("/job/train.py", 20, "main"))
    while True:
        at, stall = a.stall(now, now + 60)
        assert stall is not None
        b.watch.look(b.states(), at - 2.0)
        b.switches += 1000
        survey = asked(stall, a.account(at, poll, poll), b.account(at, poll, SPIN))
        assert survey.works
        if at >= began + 5.0 - 0.05:
            break
        assert stall.learnt and not survey.suspects
        a.watch.heed(survey, at)
        now = at
    assert not stall.excused_by_work and survey.suspects == (3,) and "rank 3 is the suspect" in survey.sentence
    assert a.watch.heed(survey, at) is None and a.watch.be_patient(stall, survey, at)
    named = b.watch.heed(survey, at)
    assert named is not None and named.local_rank == 1


def test_a_rank_elsewhere_under_a_debugger_holds_everybody() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    at, stall = silence(a, now)
    states = {rank: state._replace(tracer_pid=7) for rank, state in b.states().items()}
    survey = asked(stall, a.account(at), b.watch.account(states, at))
    assert survey.traced
    a.watch.heed(survey, at)
    assert a.stall(at, at + FLOOR_S - 0.1)[1] is None


def test_once_a_rank_elsewhere_has_ended_with_0_no_steps_are_expected_here() -> None:
    a, b = Node(0, exit_barrier_timeout_s=20.0), Node(2)
    now = train(a, b)
    b.watch.exited(0, 0, now)
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at, WAIT, WAIT), b.account(at, (), SPIN))
    assert survey.left and not survey.suspects
    a.watch.heed(survey, at)
    later, stall_then = a.stall(at, at + 60)
    assert stall_then is not None and at + 20.0 <= later <= at + 31.0
    assert "ranks of other nodes ended with 0" in stall_then.reason
    assert asked(stall_then, a.account(later, WAIT, WAIT), b.account(later, (), SPIN)).suspects == (3,)


# -- suspects -------------------------------------------------------------------------------------------------------


def test_the_suspect_is_found_on_whatever_node_it_is_and_only_its_agent_acts() -> None:
    a, b, c = Node(0), Node(2), Node(4)
    now = train(a, b, c)
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at, WAIT, WAIT), b.account(at, WAIT, SPIN), c.account(at, WAIT, WAIT))
    assert survey.suspects == (3,) and "spin (train.py:88)" in survey.why
    assert a.watch.heed(survey, at) is None and c.watch.heed(survey, at) is None
    named = b.watch.heed(survey, at)
    assert named is not None and named.local_rank == 1 and named.kind == SILENT
    assert "rank 0 made no progress for 3.0" in named.reason and "rank 3 is the suspect" in named.reason
    # Here nobody is condemned for it, unless that agent does nothing.
    assert a.watch.be_patient(stall, survey, at)
    assert a.stall(at, at + FLOOR_S - 0.1)[1] is None


def test_a_limit_contaminated_by_waiting_does_not_protect_the_suspect() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    b.watch.limits.learn(STEP, 50.0)
    assert b.stall(now, now + FLOOR_S + 1)[1] is None
    at, stall = silence(a, now)
    named = b.watch.heed(asked(stall, a.account(at, WAIT, WAIT), b.account(at, SPIN, WAIT)), at)
    assert named is not None and named.local_rank == 0


def test_a_rank_that_has_just_made_a_step_is_never_accused_by_others() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at, WAIT, WAIT), b.account(at, WAIT, SPIN))
    train(b, steps=1, start=at - STEP_S)
    assert b.watch.heed(survey, at + 0.5) is None
    assert b.watch.heed(survey._replace(limit_s=0.0, learnt=False), at + 0.5) is None


def test_with_a_given_limit_the_other_agent_gets_a_while_to_act() -> None:
    a = Node(0, section_timeouts_s={STEP: 5.0})
    now = train(a)
    at, stall = a.stall(now, now + 60)
    assert stall is not None and not stall.learnt
    survey = asked(stall, a.account(at))._replace(suspects=(3,), why="rank 3 is the suspect")
    assert a.watch.be_patient(stall, survey, at)
    later, again = a.stall(at, at + 60)
    assert again is not None and later == pytest.approx(at + elsewhere.PATIENCE_S, abs=0.1)
    assert not a.watch.be_patient(again, survey, later)


@pytest.mark.parametrize("survey", [None, Survey(0, 3.0, 3.0, True, complete=False)])
def test_as_long_as_not_all_nodes_tell_a_learnt_limit_is_roomy(survey: Survey | None) -> None:
    a = Node(0)
    now = began = train(a)
    asks = 0
    while True:
        at, stall = a.stall(now, now + 60)
        assert stall is not None
        if not a.watch.be_patient(stall, survey, at):
            break
        asks, now = asks + 1, at
    assert at == pytest.approx(began + 10 * FLOOR_S, abs=0.1) and 5 <= asks <= 15


def test_incomplete_accounts_accuse_nobody() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at, WAIT, WAIT), b.account(at, WAIT, SPIN), complete=False)
    assert b.watch.heed(survey, at) is None


def test_a_rank_that_never_meant_to_make_a_step_is_no_suspect() -> None:
    a, b = Node(0), Node(2)
    now = train(a)
    at, stall = silence(a, now)
    assert not set(asked(stall, a.account(at, WAIT, WAIT), b.account(at, SPIN, SPIN)).suspects) & {2, 3}


def test_a_learnt_limit_of_another_node_does_not_end_two_generations_at_the_same_place() -> None:
    a, b = Node(0), Node(2)
    now = train(a, b)
    at, stall = silence(a, now)
    survey = asked(stall, a.account(at, WAIT, WAIT), b.account(at, WAIT, SPIN))
    for node in (a, b):
        node.watch.heed(survey, at)
        node.watch.note_end(at + 0.2)
        node.watch.begin(1, [FIRST_PID, FIRST_PID + 1], at + 1)
        node.speakers = [Speaker(rank, FIRST_PID + rank, 1) for rank in range(2)]
    now = train(a, b, start=at + 1)
    assert a.stall(now, now + 60)[1] is None and b.stall(now, now + 60)[1] is None


class Slow:
    """Peers that answer when told to."""

    def __init__(self) -> None:
        self.asked, self.over = asyncio.Event(), asyncio.Event()

    def serve(self, *_: object) -> None:
        pass

    async def ask(self, *_: object) -> None:
        self.asked.set()
        await self.over.wait()


class Ear:
    """The agent's side."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.notes: list[str] = []

    def listen(self) -> int:
        return 0

    async def look_at_stacks(self) -> Findings:
        return Findings()

    def note_asked(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.mark.parametrize("over", [False, True])
def test_what_is_told_of_a_generation_that_is_over_is_told_of_no_other(over: bool) -> None:
    peers, ear = Slow(), Ear(Watch(HeartbeatConfig()))
    worlds = [World(generation, (), 0, 0, 4, "localhost", 1, 0, "run") for generation in range(2)]

    async def scenario() -> None:
        consultation = Consultation(peers, ear)  # type: ignore[arg-type]
        consultation.expect(worlds[0])
        asking = asyncio.ensure_future(consultation.about(Stall(0, SILENT, STEP, 5.0, 5.0, "made no step"), 0))
        await peers.asked.wait()
        if over:
            consultation.expect(worlds[1])
        peers.over.set()
        assert await asking is None

    asyncio.run(scenario())
    assert ear.notes == ([] if over else ["rank 0 made no step; asked the other nodes: no node could be asked"])


# -- what comes from outside ----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def account_json() -> dict[str, Any]:
    one = RankAccount(RankEvidence(2, snapshot(SPIN), "S", "futex", 3.0, 40, "step"), None, False, True)
    return elsewhere.to_json(Account((one, one._replace(within=True)), 7.5))


@given(name=st.sampled_from(sorted(account_json())), value=JSON)
def test_a_garbage_account_is_refused_or_harmless(name: str, value: Any) -> None:
    _refused_or_read({**account_json(), name: value})


@given(name=st.sampled_from(sorted(account_json()["ranks"][0])), value=JSON)
def test_a_garbage_rank_is_refused_or_harmless(name: str, value: Any) -> None:
    raw = account_json()
    _refused_or_read({**raw, "ranks": [{**raw["ranks"][0], name: value}]})


def _refused_or_read(raw: dict[str, Any]) -> None:
    try:
        account = elsewhere.from_json(raw)
    except ValueError:
        return
    stall = Stall(0, SILENT, STEP, 3.0, 3.0, "made no step", True)
    told(elsewhere.survey(stall, 0, [account], True))


@given(name=st.sampled_from(Survey._fields), value=JSON)
def test_a_garbage_survey_is_refused_or_harmless(name: str, value: Any) -> None:
    a = Node(0)
    raw = elsewhere.survey_to_json(Survey(0, 3.0, 3.0, True, True, suspects=(3,), why="x"))
    try:
        survey = elsewhere.survey_from_json({**raw, name: value})
    except ValueError:
        return
    a.watch.heed(survey, 1.0)
    assert math.isfinite(a.watch.assess(a.states(), 1.0).next_deadline)


def test_a_thousand_ranks_on_one_node_are_told_in_some_hundred_kilobytes() -> None:
    node = Node(0, 1000)
    now = train(node, steps=3)
    states = node.states()
    account = node.watch.account(states, now)
    found = [RankEvidence(rank, snapshot(WAIT if rank % 7 else SPIN), "S") for rank in range(1000)]
    size = len(json.dumps(elsewhere.to_json(elsewhere.with_stacks(account, found))))
    assert 1000 < size < 250_000
