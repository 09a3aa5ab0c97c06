"""Before a rank is condemned for its silence: what the agents of the other nodes know of theirs, asked and answered.

One question serves all: its outcome reaches every agent, and who hears it in time asks nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ftlaunch.heartbeat.watching import elsewhere, procstate
from ftlaunch.heartbeat.watching.elsewhere import Account, Survey
from ftlaunch.launcher import clock
from ftlaunch.rendezvous.interface import Question

if TYPE_CHECKING:
    from ftlaunch.heartbeat.watching.verdicts import Stall
    from ftlaunch.heartbeat.watching.watch import Watch
    from ftlaunch.launcher.hearing.peers import Peers
    from ftlaunch.launcher.hearing.stacks import Findings
    from ftlaunch.rendezvous.interface import Answers, World

TOPIC = "ranks"
TOPIC_STACKS = "stacks"
"""The same about a stall that no work excuses: stacks are looked at even where ranks work."""
LIMIT_S = 5.0
LIMIT_PER_NODE_S = 0.003
"""Answers take as long as stacks do, and who asked reads them one by one; who has not answered by then does not."""
LOOK_S = 1.0
"""So far apart are two looks that tell whether a rank works, where there was none in the present silence."""
FRESH_S = 2.0
"""An outcome of that age, which names who holds up the others, is the answer to the same question here."""


class Witness(Protocol):
    """Hears the ranks of this node."""

    @property
    def watch(self) -> Watch:
        """What is known of them."""

    def listen(self) -> int:
        """Take in what has arrived."""

    async def look_at_stacks(self) -> Findings:
        """What their stacks tell."""

    def heed(self, survey: Survey) -> None:
        """What all nodes told."""

    def note_asked(self, sentence: str) -> None:
        """Others were asked; what came of it."""


class Consultation:
    """Of one agent, through all generations."""

    def __init__(self, peers: Peers, witness: Witness) -> None:
        self._peers = peers
        self._witness = witness
        self._world: World | None = None
        self._latest: Survey | None = None
        self._latest_at = 0.0
        peers.serve(TOPIC, partial(self._answer, True), self._learn)
        peers.serve(TOPIC_STACKS, partial(self._answer, False), self._learn)

    def expect(self, world: World) -> None:
        """These nodes are the members now."""
        self._world, self._latest = world, None

    @property
    def needed(self) -> bool:
        """Whether there is anybody to ask."""
        return self._world is not None and len(self._world.members) > 1

    async def about(self, stall: Stall, rank: int) -> Survey | None:
        """What all nodes together say to the stall of this rank. Takes some seconds at most.

        ``None``: nobody told, or its generation is over.
        """
        world = self._world
        if world is None:
            return None
        latest = self._latest
        # One that excused a silence was heeded when it came; this silence is longer.
        if latest is None or not latest.why or clock.monotonic() - self._latest_at > FRESH_S:
            self._latest = None
            own = await self._account(stall.excused_by_work)

            def conclude(answers: Answers) -> Mapping[str, Any]:
                accounts, complete = _read(answers, world)
                return elsewhere.survey_to_json(elsewhere.survey(stall, rank, [own, *accounts], complete))

            limit_s = LIMIT_S + len(world.members) * LIMIT_PER_NODE_S
            topic = TOPIC if stall.excused_by_work else TOPIC_STACKS
            await self._peers.ask(Question(world.generation, topic), limit_s, conclude)
        if self._world is not world:
            return None
        latest = self._latest
        sentence = latest.sentence if latest is not None else "no node could be asked"
        self._witness.note_asked(f"rank {rank} {stall.reason}; asked the other nodes: {sentence}")
        return latest

    async def _answer(self, work_counts: bool, question: Question) -> Mapping[str, Any] | None:
        if self._world is None or self._world.generation != question.generation:
            return None
        return elsewhere.to_json(await self._account(work_counts))

    async def _account(self, work_counts: bool) -> Account:
        """What others must know of the ranks here; stacks only where nothing else explains a silence."""
        watch = self._witness.watch
        self._witness.listen()
        now = clock.monotonic()
        states = procstate.look(watch.pids(), children=True)
        account, known_s = watch.account(states, now), now - watch.look(states, now)
        if work_counts and known_s < LOOK_S and not account.excuses(work_counts):
            await asyncio.sleep(LOOK_S)
            states = procstate.look(watch.pids(), children=True)
            later = watch.account(states, clock.monotonic())
            account = later if later.excuses(work_counts) else account
        if account.excuses(work_counts):
            return account
        return elsewhere.with_stacks(account, (await self._witness.look_at_stacks()).evidence)

    def _learn(self, generation: int, outcome: Mapping[str, Any]) -> None:
        if self._world is None or self._world.generation != generation:
            return
        try:
            survey = elsewhere.survey_from_json(outcome)
        except ValueError:
            return
        self._latest, self._latest_at = survey, clock.monotonic()
        self._witness.heed(survey)


def _read(answers: Answers, world: World) -> tuple[list[Account], bool]:
    """The accounts that make sense, and whether they are those of all other members."""
    accounts, first = [], 0
    for member in world.members:
        said = answers.said.get(member.node_id)
        expected = list(range(first, first + member.slots))
        first += member.slots
        if said is None:
            continue
        try:
            account = elsewhere.from_json(said)
        except ValueError:
            continue
        if [one.evidence.rank for one in account.ranks] == expected:
            accounts.append(account)
    return accounts, len(accounts) == len(world.members) - 1
