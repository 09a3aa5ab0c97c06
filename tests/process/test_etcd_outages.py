"""What happens to etcd and to the way there while agents count on it: nothing is lost, nobody disturbed in vain."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest

from ftlaunch.rendezvous.etcd import EtcdSettings
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.settings import parse_endpoints
from ftlaunch.rendezvous.interface import JoinFailed, LeaseLost, Parked, PeerFailed, WorldAgreed
from support.agents import Agent, agents, until, world_of
from support.etcd import EtcdCluster, etcd
from support.needs import needs_etcd
from support.partition import (
    cut_off_while_finishing,
    cut_off_while_running,
    waits_as_long_as_it_is_in_touch,
)
from support.proxy import proxy

pytestmark = needs_etcd
_jobs = count()
_LEASE_S = 4.0


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdCluster]:
    with etcd() as cluster:
        yield cluster


@pytest.fixture
def own() -> Iterator[EtcdCluster]:
    """A server for one test, which may restart it."""
    with etcd() as cluster:
        yield cluster


@pytest.fixture
def three() -> Iterator[EtcdCluster]:
    """Three members for one test, which may restart them."""
    with etcd(3) as cluster:
        yield cluster


def job_at(endpoints: str, lease_s: float = _LEASE_S, **change: object) -> EtcdSettings:
    settings = EtcdSettings(
        parse_endpoints(endpoints)[0], f"job-{next(_jobs)}", 2, 2, node_timeout_s=lease_s, last_call_s=0.2
    )
    return replace(settings, **change)  # type: ignore[arg-type]


@asynccontextmanager
async def pair(job: EtcdSettings) -> AsyncIterator[tuple[Agent, Agent]]:
    """Two agents in generation 0."""
    async with agents(job, "a", "b") as (a, b):
        a.start()
        b.start()
        await world_of(0, a, b)
        yield a, b


async def restart(a: Agent, b: Agent, generation: int = 0) -> None:
    """The rendezvous works: a failure reaches the other node and the next generation is agreed on."""
    a.fail(generation)
    await b.hear(PeerFailed, generation)
    b.join(generation + 1)
    await world_of(generation + 1, a, b)


async def come_back(a: Agent, b: Agent) -> None:
    """After both lost their lease, both join again."""
    a.join(1, counted=False)
    b.join(1, counted=False)
    await world_of(1, a, b)


# --- etcd itself ------------------------------------------------------------------------------------------------------


def test_a_pause_of_etcd_shorter_than_the_lease_is_not_noticed(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with pair(job_at(server.endpoints)) as (a, b):
            server.send(signal.SIGSTOP)
            await asyncio.sleep(_LEASE_S / 4)
            server.send(signal.SIGCONT)
            await asyncio.sleep(_LEASE_S / 4)
            assert not a.heard + b.heard
            await restart(a, b)

    asyncio.run(scenario())


def test_a_pause_longer_than_the_lease_stops_all_workers_before_it_ends(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with pair(job_at(server.endpoints, 2.0)) as (a, b):
            server.send(signal.SIGSTOP)
            begin = time.monotonic()
            for agent in (a, b):
                lost = await agent.hear(LeaseLost, 0)
                assert "does not answer" in lost.reason or "no answer" in lost.reason
            assert time.monotonic() - begin < 2.0
            server.send(signal.SIGCONT)
            await come_back(a, b)

    asyncio.run(scenario())


def test_with_the_other_policy_training_goes_on_without_etcd(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with pair(job_at(server.endpoints, 2.0, stop_on_outage=False)) as (a, b):
            server.send(signal.SIGSTOP)
            await asyncio.sleep(3.0)
            server.send(signal.SIGCONT)
            prefix = Keys.of_job(a.rendezvous._settings.job_id).prefix
            await until(lambda: {f"{prefix}nodes/a", f"{prefix}nodes/b"} <= server.members[0].keys(prefix).keys())
            assert not a.heard + b.heard
            await restart(a, b)

    asyncio.run(scenario())


def test_with_the_other_policy_a_spare_that_leads_after_an_outage_lets_members_come_back(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with proxy(server.members[0].client_port) as way:
            job = job_at(server.endpoints, stop_on_outage=False)
            behind = replace(job, endpoints=parse_endpoints(way.endpoint)[0])
            async with pair(behind) as (a, b), agents(job, "c") as (c,):
                c.start()
                await c.hear(Parked)
                keys, member = Keys.of_job(job.job_id), server.members[0]
                way.freeze()
                server.send(signal.SIGSTOP)
                await asyncio.sleep(_LEASE_S + 1.0)
                server.send(signal.SIGCONT)
                await until(lambda: vars(c.rendezvous)["_candidacy"].reason)
                way.thaw()
                nodes = {f"{keys.prefix}nodes/{name}" for name in "abc"}
                await until(lambda: nodes <= member.keys(keys.prefix).keys())
                assert not a.heard + b.heard
                await restart(a, b)

    asyncio.run(scenario())


def test_who_waits_for_longer_than_it_may_while_etcd_is_away_says_so_and_spares_end_too(own: EtcdCluster) -> None:
    async def scenario() -> None:
        job = job_at(own.endpoints, join_timeout_s=3.0)
        async with pair(job) as (a, _), agents(job, "c") as (c,):
            c.start()
            await c.hear(Parked)
            own.stop()
            a.fail(0)
            member, spare = await a.hear(JoinFailed, 1), await c.hear(JoinFailed, 0)
            assert "etcd at" in member.reason and "too few" not in member.reason
            assert "etcd was not reached for 3 s: etcd at" in spare.reason

    asyncio.run(scenario())


def test_a_spare_waits_on_when_etcd_comes_back_in_time(own: EtcdCluster) -> None:
    async def scenario() -> None:
        job = job_at(own.endpoints, join_timeout_s=3.0)
        async with pair(job) as (a, b), agents(job, "c") as (c,):
            c.start()
            await c.hear(Parked)
            backend = vars(c.rendezvous)
            own.stop()
            await until(lambda: backend["_outage"])
            own.start()
            await until(lambda: backend["_outage"] is None and not backend["_trouble"])
            await restart(a, b)
            assert not any(isinstance(event, JoinFailed) for event in c.heard)

    asyncio.run(scenario())


def test_a_restart_of_etcd_is_not_noticed(own: EtcdCluster) -> None:
    async def scenario() -> None:
        async with pair(job_at(own.endpoints)) as (a, b):
            own.stop()
            own.start()
            await restart(a, b)
            own.stop()
            a.fail(1)
            own.start()
            # Told while etcd was away, heard all the same.
            await b.hear(PeerFailed, 1)
            b.join(2)
            await world_of(2, a, b)

    asyncio.run(scenario())


def test_the_leader_of_three_members_may_die(three: EtcdCluster) -> None:
    async def scenario() -> None:
        async with pair(job_at(three.endpoints)) as (a, b):
            dead = three.leader()
            three.members[dead].stop()
            await restart(a, b)
            three.start([dead])
            await restart(a, b, 1)

    asyncio.run(scenario())


def test_a_lost_majority_is_an_outage_and_its_return_its_end(three: EtcdCluster) -> None:
    async def scenario() -> None:
        async with pair(job_at(three.endpoints, 3.0)) as (a, b):
            for member in three.members[:2]:
                member.stop()
            for agent in (a, b):
                await agent.hear(LeaseLost, 0)
            three.start([0, 1])
            await come_back(a, b)

    asyncio.run(scenario())


def test_compaction_and_foreign_garbage_are_not_noticed(own: EtcdCluster) -> None:
    async def scenario() -> None:
        member, job = own.members[0], job_at(own.endpoints)
        prefix = Keys.of_job(job.job_id).prefix
        async with pair(job) as (a, b):
            for n in range(100):
                member.put(f"/ftlaunch/other{n}/nodes/x", b"\xff" * 100)
                member.put(f"/ftlaunch/{job.job_id}x/closed", b"nonsense")
            for key in ("nodes/x", "finish/x", "failures/x", "generations/x", "growth", "closed/x"):
                member.put(f"{prefix}{key}", b"\xff\x00nonsense")
            member.compact()
            await restart(a, b)
            # A watch that has to be made anew finds its history gone.
            own.stop()
            own.start()
            member.compact()
            await restart(a, b, 1)

    asyncio.run(scenario())


# --- the way there ----------------------------------------------------------------------------------------------------


def test_who_is_cut_off_has_stopped_before_the_others_know(server: EtcdCluster) -> None:
    chance = random.Random(7)

    async def one_round() -> None:
        async with proxy(server.members[0].client_port) as way:
            job = job_at(server.endpoints, 2.0)
            cut_off = replace(job, endpoints=parse_endpoints(way.endpoint)[0])
            async with agents(job, "a") as (a,), agents(cut_off, "b") as (b,):
                await cut_off_while_running(a, b, way, way.thaw, chance.uniform(0.0, 0.7))

    async def scenario() -> None:
        await asyncio.gather(*(one_round() for _ in range(8)))

    asyncio.run(scenario())


def test_who_has_finished_waits_for_the_others_and_not_for_etcd(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with proxy(server.members[0].client_port) as way:
            job = job_at(server.endpoints, 2.0)
            behind = replace(job, endpoints=parse_endpoints(way.endpoint)[0])
            async with agents(job, "a") as (a,), agents(behind, "b") as (b,):
                await waits_as_long_as_it_is_in_touch(a, b, way)

    asyncio.run(scenario())


def test_who_is_cut_off_while_it_finishes_is_called_back_once_the_cut_heals(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with proxy(server.members[0].client_port) as way:
            job = job_at(server.endpoints, 2.0)
            cut_off = replace(job, endpoints=parse_endpoints(way.endpoint)[0])
            async with agents(job, "a") as (a,), agents(cut_off, "b") as (b,):
                waiting = await cut_off_while_finishing(a, b, way)
                await asyncio.gather(*waiting)
                assert await asyncio.gather(a.finish(1), b.finish(1)) == [0, 0]

    asyncio.run(scenario())


def test_connections_that_break_all_the_time_do_no_harm(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with proxy(server.members[0].client_port) as way, pair(job_at(way.endpoint)) as (a, b):
            for _ in range(20):
                way.cut()
                await asyncio.sleep(0.1)
            assert not a.heard + b.heard
            for generation in range(3):
                way.cut()
                await restart(a, b, generation)

    asyncio.run(scenario())


def test_dead_endpoints_cost_little(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with proxy(server.members[0].client_port) as hole, proxy(server.members[0].client_port) as refused:
            hole.freeze()
            await refused.stop()
            job = job_at(f"{hole.endpoint},{refused.endpoint},{server.endpoints}", min_nodes=1, max_nodes=1)
            begin = time.monotonic()
            for _ in range(3):
                async with agents(replace(job, job_id=f"job-{next(_jobs)}"), "a") as (a,):
                    a.start()
                    await a.hear(WorldAgreed, 0)
            assert (time.monotonic() - begin) / 3 < 5.0

    asyncio.run(scenario())
