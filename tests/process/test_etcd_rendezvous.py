"""Agents on a real etcd: agreeing, failing, dying, coming back, finishing, leaving, and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise

import pytest

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.etcd import EtcdSettings
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.settings import parse_endpoints
from ftlaunch.rendezvous.interface import (
    Closed,
    JoinFailed,
    MembershipChanged,
    Outcome,
    Parked,
    PeerFailed,
    WorldAgreed,
)
from support.agents import agents, programs, until, world_of
from support.etcd import EtcdCluster, etcd
from support.needs import needs_etcd
from support.spares import taught_early_and_late
from support.waiting import wait_until

pytestmark = needs_etcd
_jobs = count()


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdCluster]:
    with etcd() as cluster:
        yield cluster


@pytest.fixture
def job(server: EtcdCluster) -> EtcdSettings:
    """A job of two nodes with short waits, but a lease that does not end during a test."""
    return EtcdSettings(
        parse_endpoints(server.endpoints)[0],
        f"job-{next(_jobs)}",
        2,
        2,
        node_timeout_s=20.0,
        last_call_s=0.5,
        join_timeout_s=10.0,
        tombstone_ttl_s=2.0,
    )


def keys_of(server: EtcdCluster, job: EtcdSettings) -> set[str]:
    prefix = Keys.of_job(job.job_id).prefix
    return {key.removeprefix(prefix) for key in server.members[0].keys(prefix)}


# --- agreeing ---------------------------------------------------------------------------------------------------------


def test_two_nodes_agree_and_start_again_after_a_failure(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start(resume="step-1")
            b.start(resume="step-2")
            first = await world_of(0, a, b)
            b.fail(0)
            assert await a.hear(PeerFailed) == PeerFailed(0, "b", "rank 0 died")
            a.join(1)
            assert await world_of(1, a, b) == first

    asyncio.run(scenario())


def test_a_restart_is_quick_and_counted_once(job: EtcdSettings, capsys: pytest.CaptureFixture[str]) -> None:
    durations: list[float] = []
    ports: list[int] = []

    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)
            for generation in range(10):
                begin = time.monotonic()
                a.fail(generation)
                await b.hear(PeerFailed, generation)
                b.join(generation + 1)
                world = (await b.hear(WorldAgreed, generation + 1)).world
                await a.hear(WorldAgreed, generation + 1)
                durations.append(time.monotonic() - begin)
                ports.append(world.master_port)
                assert world.restart_count == generation + 1

    asyncio.run(scenario())
    durations.sort()
    with capsys.disabled():
        print(f"\nfailure to next world: median {durations[5] * 1e3:.1f} ms, longest {durations[-1] * 1e3:.1f} ms")
    assert all(one != next_one for one, next_one in pairwise(ports))


def test_node_ranks_order_the_first_world_and_all_get_what_the_leader_publishes(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "late", node_rank=0) as (late,), agents(job, "early", node_rank=1) as (early,):
            early.start(path="e")
            late.start(path="l")
            worlds = [(await agent.hear(WorldAgreed)).world for agent in (late, early)]
            assert [m.node_id for m in worlds[0].members] == ["late", "early"]
            assert [world.rank_offset for world in worlds] == [0, 2]
            assert [world.world_size for world in worlds] == [4, 4]
            assert [dict(world.shared) for world in worlds] == [{"path": "l"}] * 2
            assert worlds[0].master_addr == "127.0.0.1"

    asyncio.run(scenario())


def test_local_addr_is_taken_verbatim(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(replace(job, min_nodes=1, max_nodes=1), "a", local_addr="my-pod.svc", master_port=4711) as (
            a,
        ):
            a.start()
            world = (await a.hear(WorldAgreed)).world
            assert (world.master_addr, world.master_port) == ("my-pod.svc", 4711)

    asyncio.run(scenario())


def test_surplus_agents_are_parked_in_every_round(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "s") as (a, b, s):
            a.start()
            b.start()
            order = await world_of(0, a, b)
            s.start()
            await s.hear(Parked, 0)
            for generation in range(4):
                fails, other = (b, a) if generation % 2 == 0 else (a, b)
                fails.fail(generation)
                await other.hear(PeerFailed, generation)
                other.join(generation + 1)
                assert await world_of(generation + 1, a, b) == order
                await s.hear(Parked, generation + 1)

    asyncio.run(scenario())


def test_spares_hear_what_to_import_ahead_and_nobody_else_does(server: EtcdCluster, job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "early", "late") as (a, b, early, late):
            await taught_early_and_late(a, b, early, late)
            await a.finish(0, Outcome.FAILED, 1)
            assert "modules" not in keys_of(server, job)

    asyncio.run(scenario())


def test_host_that_fails_again_and_again_is_passed_over_for_a_spare(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "s") as (a, b, s):
            a.start()
            b.start()
            await world_of(0, a, b)
            s.start()
            await s.hear(Parked, 0)
            for generation in range(3):
                b.fail(generation)
                await a.hear(PeerFailed, generation)
                a.join(generation + 1)
                await world_of(generation + 1, a, *((b,) if generation < 2 else (s,)))
            await b.hear(Parked, 3)

    asyncio.run(scenario())


def test_too_few_nodes_end_in_one_line_that_says_so(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(replace(job, join_timeout_s=1.0), "a") as (a,):
            a.start()
            failed = await a.hear(JoinFailed)
            assert "1 of 2 nodes are there" in failed.reason

    asyncio.run(scenario())


# --- growing and shrinking --------------------------------------------------------------------------------------------


def test_a_world_shrinks_when_a_node_leaves_and_grows_when_one_comes(server: EtcdCluster, job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(replace(job, min_nodes=1), "a", "b", "c") as (a, b, c):
            a.start()
            b.start()
            await world_of(0, a, b)
            assert await b.finish(0, Outcome.LEFT, 143) == 143
            assert (await a.hear(PeerFailed, 0)).reason == "b ends"
            a.join(1)
            assert (await a.hear(WorldAgreed, 1)).world.restart_count == 0
            c.start()
            await c.hear(Parked, 1)
            change = await a.hear(MembershipChanged, 1)
            assert change.waiting == 1
            a.join(2, counted=False)
            assert await world_of(2, a, c) == ["a", "c"]

    asyncio.run(scenario())
    assert not any(key.startswith("closed") for key in keys_of(server, job))


# --- ending -----------------------------------------------------------------------------------------------------------


def test_all_nodes_end_together_and_leave_only_a_tombstone(server: EtcdCluster, job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "s") as (a, b, s):
            a.start()
            b.start()
            await world_of(0, a, b)
            s.start()
            await s.hear(Parked)
            early = asyncio.ensure_future(a.finish(0))
            await asyncio.wait({early}, timeout=0.3)
            assert not early.done(), "a must wait for b"
            assert await b.finish(0) == 0
            assert await early == 0
            assert (await s.hear(Closed)).exit_code == 0

    asyncio.run(scenario())
    assert keys_of(server, job) <= {"closed"}
    wait_until(lambda: keys_of(server, job) == set(), 10.0, "the tombstone to expire")


def test_a_failed_job_ends_with_one_code_on_all_nodes_and_for_who_comes_late(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "late") as (a, b, late):
            a.start()
            b.start()
            await world_of(0, a, b)
            assert await a.finish(0, Outcome.FAILED, 76) == 76
            assert await b.hear(Closed) == Closed(76, "a ends")
            assert await b.finish(0, Outcome.FAILED, 1) == 76
            late.start()
            closed = await late.hear(Closed)
            assert closed.exit_code == 76
            assert "has ended" in closed.reason

    asyncio.run(scenario())


def test_a_failure_during_the_wait_at_the_end_calls_the_others_back(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            order = await world_of(0, a, b)
            waiting = asyncio.ensure_future(a.finish(0))
            await asyncio.wait({waiting}, timeout=0.2)
            b.fail(0)
            await a.hear(PeerFailed, 0)
            waiting.cancel()
            a.join(1)
            assert await world_of(1, a, b) == order
            assert await asyncio.gather(a.finish(1), b.finish(1)) == [0, 0]

    asyncio.run(scenario())


def test_the_restart_count_survives_all_agents(server: EtcdCluster, job: EtcdSettings) -> None:
    async def scenario() -> None:
        single = replace(job, min_nodes=1, max_nodes=1)
        async with agents(single, "a") as (a,):
            a.start()
            await world_of(0, a)
            a.fail(0)
            await world_of(1, a)
            await a.finish(1, Outcome.LEFT, 143)
        assert keys_of(server, job) == {"generations/0000000001"}
        async with agents(single, "b") as (b,):
            b.start()
            world = (await b.hear(WorldAgreed)).world
            assert (world.generation, world.restart_count) == (2, 1)

    asyncio.run(scenario())


# --- started wrongly --------------------------------------------------------------------------------------------------


def test_different_settings_end_the_job_naming_both_sides(server: EtcdCluster, job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a") as (a,), agents(job, "b", settings={"nproc": "4"}) as (b,):
            a.start()
            await until(lambda: "leader" in keys_of(server, job))
            b.start()
            for agent in (a, b):
                closed = await agent.hear(Closed)
                assert closed.exit_code == 2
                assert "nproc is 4 on host-b" in closed.reason
                assert "but 2 on host-a" in closed.reason

    asyncio.run(scenario())


def test_a_stranger_does_not_end_a_running_job(job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b), agents(replace(job, max_nodes=3), "c") as (c,):
            a.start()
            b.start()
            await world_of(0, a, b)
            c.start()
            closed = await c.hear(Closed)
            assert closed.exit_code == 2
            assert "nnodes is 2:3 on host-c" in closed.reason
            assert not a.heard
            assert not b.heard

    asyncio.run(scenario())


def test_two_agents_on_one_machine_are_told_apart_by_pid_unless_allowed(server: EtcdCluster, job: EtcdSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", machine="same", pid=11) as (a,), agents(job, "b", machine="same", pid=22) as (b,):
            a.start()
            await until(lambda: "leader" in keys_of(server, job))
            b.start()
            closed = await b.hear(Closed)
            assert closed.exit_code == 2
            assert "pid 11" in closed.reason
            assert "pid 22" in closed.reason
        allowed = replace(job, job_id=f"{job.job_id}-allowed", allow_multiple_agents_per_node=True)
        async with agents(allowed, "a", "b", machine="same") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)

    asyncio.run(scenario())


# --- dying ------------------------------------------------------------------------------------------------------------


def test_a_killed_agent_on_a_living_host_is_replaced_at_once(server: EtcdCluster) -> None:
    with programs(server.endpoints, "3", "a", "b", "c", "s", job="killed", node_timeout="60") as (a, b, c, s):
        for program in (a, b, c):
            program.start()
        order = a.hear("WorldAgreed", generation=0)["order"]
        s.start().hear("Parked", generation=0)
        wait_until(lambda: all(len(program.ticks(0)) > 25 for program in (a, b)), 15.0)
        killed = c.send(signal.SIGKILL)
        agreed = s.hear("WorldAgreed", generation=1)
        assert agreed["order"] == ["s" if name == "c" else name for name in order]
        assert agreed["at"] - killed < 10.0, "far less than the node timeout"
        assert b.hear("PeerFailed", generation=0)["node_id"] == "c"


def test_the_death_of_the_leader_is_no_different(server: EtcdCluster) -> None:
    with programs(server.endpoints, "2", "a", "b", "s", job="leader-killed", node_timeout="60") as (a, b, s):
        a.start()
        wait_until(lambda: "/ftlaunch/leader-killed/leader" in server.members[0].keys("/ftlaunch/leader-killed/"))
        b.start()
        b.hear("WorldAgreed", generation=0)
        s.start().hear("Parked", generation=0)
        wait_until(lambda: len(b.ticks(0)) > 25, 15.0)
        killed = a.send(signal.SIGKILL)
        agreed = s.hear("WorldAgreed", generation=1)
        assert agreed["order"] == ["s", "b"]
        assert agreed["at"] - killed < 10.0, "far less than the node timeout"


def test_a_node_that_falls_silent_has_stopped_before_the_others_go_on(server: EtcdCluster) -> None:
    with programs(server.endpoints, "1:2", "a", "b", job="silent", node_timeout="2", last_call_timeout="0.2") as (a, b):
        a.start()
        b.start()
        first = b.hear_world("a", "b")["generation"]
        b.hear("tick", generation=first)
        stopped = b.send(signal.SIGSTOP)
        assert a.hear("PeerFailed", generation=first)["node_id"] == "b"
        alone = a.hear_world("a", after=first)
        assert alone["at"] - stopped < 2.0 + 5.0
        b.send(signal.SIGCONT)
        resumed = boottime()
        lost = b.hear("LeaseLost", generation=first)
        assert lost["at"] - resumed < 2.0
        # It comes back as a node that the others take in again.
        b.hear_world("a", "b", after=alone["generation"])
        assert max(b.ticks(first)) <= lost["at"]
