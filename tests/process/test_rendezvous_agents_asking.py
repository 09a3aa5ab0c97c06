"""Agents that ask each other, on a real etcd and at a hub: who is heard, who is not, and what is left of it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from ftlaunch.rendezvous.etcd import EtcdSettings
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.settings import parse_endpoints
from ftlaunch.rendezvous.hub import HubSettings
from ftlaunch.rendezvous.interface import Answers, PeerFailed, Question, WorldAgreed
from support.agents import Agent, agents, until
from support.etcd import EtcdCluster, etcd, find_binary
from support.needs import needs_etcd

_jobs = count()
Settings = EtcdSettings | HubSettings


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdCluster | None]:
    if find_binary() is None:
        yield None
        return
    with etcd() as cluster:
        yield cluster


@pytest.fixture(params=[pytest.param("etcd", marks=needs_etcd), "hub"])
def job(request: pytest.FixtureRequest, server: EtcdCluster | None) -> Settings:
    """A job of three nodes."""
    waits: dict[str, Any] = {"node_timeout_s": 20.0, "last_call_s": 0.3, "join_timeout_s": 10.0}
    if request.param == "hub" or server is None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
        return HubSettings("127.0.0.1", port, "job", 3, 3, **waits)
    return EtcdSettings(parse_endpoints(server.endpoints)[0], f"job-{next(_jobs)}", 3, 3, **waits)


@dataclass
class Voice:
    """Answers with its name, and remembers what it heard."""

    name: str
    says: Callable[[], Mapping[str, Any] | None] = dict
    silent: bool = False
    asked: list[Question] = field(default_factory=list)
    learnt: list[Mapping[str, Any]] = field(default_factory=list)

    async def answer(self, question: Question) -> Mapping[str, Any] | None:
        self.asked.append(question)
        return None if self.silent else {"name": self.name, **(self.says() or {})}

    def learn(self, question: Question, outcome: Mapping[str, Any]) -> None:
        self.learnt.append(outcome)


async def together(*members: Agent) -> dict[str, Voice]:
    """All in generation 0, each with a voice."""
    voices = {member.name: Voice(member.name) for member in members}
    for member in members:
        member.start()
        member.rendezvous.respond_with(voices[member.name])
    for member in members:
        await member.hear(WorldAgreed, 0)
    return voices


def names(answers: Answers | None) -> dict[str, Any]:
    assert answers is not None
    return {node_id: said.get("name") for node_id, said in answers.said.items()}


def test_all_other_members_answer_and_nobody_else_is_told(job: Settings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "c") as (a, b, c):
            voices = await together(a, b, c)
            for _ in range(3):
                assert names(await a.rendezvous.ask(Question(0, "status"), 5.0)) == {"b": "b", "c": "c"}
            assert names(await b.rendezvous.ask(Question(0, "status"), 5.0)) == {"a": "a", "c": "c"}
            assert [len(voices[name].asked) for name in "abc"] == [1, 3, 4]
            assert not any(voice.learnt for voice in voices.values())

    asyncio.run(scenario())


def test_many_that_ask_the_same_at_once_make_one_question_whose_outcome_all_learn(job: Settings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "c") as (a, b, c):
            voices = await together(a, b, c)

            def conclude(answers: Answers) -> Mapping[str, Any]:
                return {"heard": sorted(answers.said), "missing": list(answers.missing)}

            rounds = 20
            for number in range(1, rounds + 1):
                asking = (each.rendezvous.ask(Question(0, "ranks"), 5.0, conclude) for each in (a, b, c))
                answered = [answers for answers in await asyncio.gather(*asking) if answers is not None]
                assert len(answered) == 1
                await until(lambda number=number: all(len(v.learnt) == number for v in voices.values()))  # type: ignore[misc]
            (outcomes,) = {str(voice.learnt) for voice in voices.values()}
            assert outcomes.count("'missing': []") == rounds
            # Each member is asked once a round, except who asks.
            assert sum(len(voice.asked) for voice in voices.values()) == 2 * rounds
            # It is over: the next one may ask.
            assert names(await b.rendezvous.ask(Question(0, "ranks"), 5.0, conclude)) == {"a": "a", "c": "c"}

    asyncio.run(scenario())


def test_a_member_that_says_nothing_is_named_and_not_waited_for_long(job: Settings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "c") as (a, b, c):
            voices = await together(a, b, c)
            voices["c"].silent = True
            answers = await a.rendezvous.ask(Question(0, "status"), 0.5)
            assert names(answers) == {"b": "b"}
            assert answers is not None and answers.missing == ("c",)

    asyncio.run(scenario())


def test_an_answer_that_is_too_large_is_not_sent(job: Settings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "c") as (a, b, c):
            voices = await together(a, b, c)
            voices["b"].says = lambda: {"x": "y" * 300_000}
            answers = await a.rendezvous.ask(Question(0, "status"), 0.7)
            assert answers is not None and answers.missing == ("b",) and names(answers) == {"c": "c"}

    asyncio.run(scenario())


def test_nothing_is_asked_about_a_generation_that_is_over(job: Settings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "c") as (a, b, c):
            voices = await together(a, b, c)
            assert await a.rendezvous.ask(Question(1, "status"), 5.0) is None
            b.rendezvous.announce_failure(0, "rank 0 died")
            await a.hear(PeerFailed, 0)
            assert await a.rendezvous.ask(Question(0, "status"), 5.0) is None
            assert not voices["c"].asked

    asyncio.run(scenario())


@needs_etcd
def test_with_etcd_nothing_is_left_but_the_last_outcome(server: EtcdCluster) -> None:
    settings = EtcdSettings(parse_endpoints(server.endpoints)[0], f"job-{next(_jobs)}", 2, 2, node_timeout_s=20.0)
    prefix = Keys.of_job(settings.job_id).prefix

    def left() -> dict[str, int]:
        found = server.members[0].keys(prefix)
        return {key.removeprefix(prefix): lease for key, lease in found.items() if "/nodes/" not in key}

    async def scenario() -> None:
        async with agents(settings, "a", "b") as (a, b):
            await together(a, b)
            for _ in range(2):
                await a.rendezvous.ask(Question(0, "ranks"), 5.0, lambda answers: {"n": len(answers.said)})
            await until(lambda: not any(key.startswith("answers/") for key in left()))
            assert all(lease != 0 for key, lease in left().items() if key.startswith("asks/"))
            assert [key for key in left() if key.startswith("asks/")] == ["asks/ranks"]
            assert await asyncio.gather(a.finish(0), b.finish(0)) == [0, 0]
        assert not any(key.startswith(("asks/", "answers/")) for key in left())

    asyncio.run(scenario())


@needs_etcd
def test_garbage_in_etcd_is_counted_and_does_no_harm(server: EtcdCluster) -> None:
    settings = EtcdSettings(parse_endpoints(server.endpoints)[0], f"job-{next(_jobs)}", 2, 2, node_timeout_s=20.0)
    keys = Keys.of_job(settings.job_id)
    member = server.members[0]
    deep = b"[" * 100_000

    async def scenario() -> None:
        async with agents(settings, "a", "b") as (a, b):
            voices = await together(a, b)
            for number, value in enumerate((b"", b"{", deep, b'{"v":1}', b'{"v":1,"name":"x","topic":1}')):
                member.put(keys.ask(f"garbage-{number}"), value)
            # Where a question is to stand.
            member.put(keys.ask("ranks"), deep)

            def spoil() -> Mapping[str, Any]:
                (attempt,) = a.rendezvous._asking._polls
                for number, value in enumerate((b"", deep, b'{"v":1,"attempt":3}', b'{"v":1,"x":NaN}')):
                    member.put(keys.answer(attempt, f"garbage-{number}"), value)
                member.put(
                    keys.answer(attempt, "huge"), b'{"v":1,"attempt":"%s","x":"' % attempt.encode() + b"y" * 10**6
                )
                return {}

            voices["b"].says = spoil
            answers = await a.rendezvous.ask(Question(0, "ranks"), 5.0, lambda answers: {})
            assert names(answers) == {"b": "b"}
            assert answers is not None and answers.refused == 5
            assert names(await b.rendezvous.ask(Question(0, "status"), 5.0)) == {"a": "a"}

    asyncio.run(scenario())


@needs_etcd
def test_an_etcd_that_is_away_costs_no_more_than_the_limit() -> None:
    async def scenario() -> None:
        with etcd() as own:
            settings = EtcdSettings(parse_endpoints(own.endpoints)[0], "job", 2, 2, node_timeout_s=60.0)
            async with agents(settings, "a", "b") as (a, b):
                await together(a, b)
                own.send(signal.SIGSTOP)
                began = asyncio.get_running_loop().time()
                assert await a.rendezvous.ask(Question(0, "ranks"), 1.0, lambda answers: {}) is None
                assert asyncio.get_running_loop().time() - began < 10
                own.send(signal.SIGCONT)
                answers = None
                while answers is None:
                    # The question that was given up may have arrived all the same: nobody waits for it for ever.
                    answers = await b.rendezvous.ask(Question(0, "ranks"), 1.0, lambda answers: {})
                assert names(answers) == {"a": "a"}

    asyncio.run(scenario())
