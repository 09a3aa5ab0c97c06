"""Agents that meet at one of them, without a server: agreeing, failing, dying, coming back, and losing the host."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import random
import signal
import socket
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ftlaunch.rendezvous.common.clock import boottime
from ftlaunch.rendezvous.common.peers import Proof
from ftlaunch.rendezvous.hub import HubSettings, server
from ftlaunch.rendezvous.hub.frames import Hello, frame, wish_frame
from ftlaunch.rendezvous.hub.server import MOST_STRANGERS
from ftlaunch.rendezvous.interface import (
    Closed,
    ExclusionWish,
    JoinFailed,
    MembershipChanged,
    Outcome,
    Parked,
    PeerFailed,
    WorldAgreed,
)
from support.agents import Agent, agents, programs, until, world_of
from support.partition import (
    cut_off_while_finishing,
    cut_off_while_running,
    waits_as_long_as_it_is_in_touch,
)
from support.proxy import Proxy, proxy
from support.spares import taught_early_and_late
from support.waiting import wait_until


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        free: int = holder.getsockname()[1]
    yield free


@pytest.fixture
def job(port: int) -> HubSettings:
    """Two nodes that meet at this machine."""
    return HubSettings("127.0.0.1", port, "job", 2, 2, node_timeout_s=20.0, last_call_s=0.3, join_timeout_s=10.0)


def test_the_first_agent_of_the_machine_hosts_and_all_agree(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "s") as (a, b, s):
            a.start(resume="step-1")
            b.start(resume="step-2")
            order = await world_of(0, a, b)
            s.start()
            assert (await s.hear(Parked)).generation == 0
            for generation in range(4):
                # In turn: a host that fails again and again would have to give way to the spare.
                fails, other = ((b, a), (a, b))[generation % 2]
                fails.fail(generation)
                assert await other.hear(PeerFailed) == PeerFailed(generation, "ba"[generation % 2], "rank 0 died")
                other.join(generation + 1)
                world = (await a.hear(WorldAgreed, generation + 1)).world
                assert world.restart_count == generation + 1
                assert [member.node_id for member in world.members] == order
                await b.hear(WorldAgreed, generation + 1)
                await s.hear(Parked, generation + 1)
            assert await asyncio.gather(a.finish(4), b.finish(4)) == [0, 0]
            assert (await s.hear(Closed)).exit_code == 0

    asyncio.run(scenario())


def test_with_static_nodes_node_0_hosts_and_ranks_follow_node_ranks(job: HubSettings) -> None:
    first, second = replace(job, is_host=True), replace(job, is_host=False)

    async def scenario() -> None:
        async with agents(second, "b", node_rank=1) as (b,), agents(first, "a", node_rank=0) as (a,):
            b.start()
            a.start()
            assert await world_of(0, a, b) == ["a", "b"]

    asyncio.run(scenario())


def test_a_failed_job_ends_everywhere_with_the_code_of_the_first(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)
            assert await b.finish(0, Outcome.FAILED, 76) == 76
            assert await a.hear(Closed) == Closed(76, "b ends")
            assert await a.finish(0, Outcome.FAILED, 1) == 76

    asyncio.run(scenario())


def test_a_failure_calls_back_who_waits_at_the_end(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)
            waiting = asyncio.ensure_future(a.finish(0))
            await asyncio.wait({waiting}, timeout=0.2)
            assert not waiting.done()
            b.fail(0)
            await a.hear(PeerFailed, 0)
            waiting.cancel()
            a.join(1)
            await world_of(1, a, b)
            assert await asyncio.gather(a.finish(1), b.finish(1)) == [0, 0]

    asyncio.run(scenario())


def test_a_world_shrinks_and_grows(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(replace(job, min_nodes=1), "a", "b", "c") as (a, b, c):
            a.start()
            await until(lambda: a.rendezvous._hub is not None)
            b.start()
            await world_of(0, a, b)
            assert await b.finish(0, Outcome.LEFT, 143) == 143
            assert (await a.hear(PeerFailed, 0)).reason == "b ends"
            a.join(1)
            assert (await a.hear(WorldAgreed, 1)).world.restart_count == 0
            c.start()
            await c.hear(Parked, 1)
            assert (await a.hear(MembershipChanged, 1)).waiting == 1
            a.join(2, counted=False)
            await world_of(2, a, c)

    asyncio.run(scenario())


def test_a_killed_agent_is_replaced_at_once_and_a_silent_one_after_the_node_timeout(port: int) -> None:
    endpoint, conf = f"127.0.0.1:{port}", {"backend": "c10d", "node_timeout": "2", "last_call_timeout": "0.2"}
    with programs(endpoint, "1:3", "a", "b", "c", **conf) as (a, b, c):
        a.start()
        wait_until(lambda: listening(port), 15.0)
        b.start()
        c.start()
        first = a.hear_world("a", "b", "c")["generation"]
        for program in (b, c):
            program.hear("tick", generation=first)
        c.send(signal.SIGKILL)
        assert a.hear("PeerFailed", generation=first)["node_id"] == "c"
        second = b.hear_world("a", "b", after=first)["generation"]
        b.hear("tick", generation=second)
        b.send(signal.SIGSTOP)
        assert a.hear("PeerFailed", generation=second)["node_id"] == "b"
        third = a.hear_world("a", after=second)["generation"]
        b.send(signal.SIGCONT)
        resumed = boottime()
        assert b.hear("LeaseLost", generation=second)["at"] - resumed < 2.0
        assert b.hear_world("a", "b", after=third)["order"] == ["a", "b"]


def test_the_job_survives_a_host_that_comes_back_and_stops_without_it(port: int) -> None:
    endpoint, conf = f"127.0.0.1:{port}", {"backend": "c10d", "node_timeout": "2", "last_call_timeout": "1"}
    with programs(endpoint, "2", "a", "b", "c", **conf) as (a, b, c):
        a.start()
        wait_until(lambda: listening(port), 15.0)
        b.start()
        b.hear("tick", generation=0)
        killed = a.send(signal.SIGKILL)
        # Nobody tells b anything any more: it stops its workers in time.
        assert b.hear("LeaseLost", generation=0)["at"] - killed < 2.0
        c.start()
        agreed = b.hear("WorldAgreed", generation=1)
        assert agreed["order"] == ["c", "b"]


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_strangers_are_turned_away_by_name(job: HubSettings) -> None:
    async def refused(stranger: Agent) -> str:
        stranger.start()
        closed = await stranger.hear(Closed)
        assert closed.exit_code == 2
        return closed.reason

    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)
            async with agents(replace(job, job_id="other"), "x") as (x,):
                assert "is the rendezvous of another job, not of 'other'" in await refused(x)
            async with agents(replace(job, max_nodes=3), "x") as (x,):
                assert "nnodes is 2:3 on host-x" in await refused(x)
            async with agents(job, "x", machine="machine-a") as (x,):
                assert "two agents of job job" in await refused(x)
            assert not a.heard + b.heard

    asyncio.run(scenario())


def test_nonsense_is_not_understood_and_does_no_harm(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            await until(lambda: listening(job.port))
            for text in (b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b"hello {}\n", b"\xff" * 100_000, b"hello [1]\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
                writer.write(text)
                answer = b""
                # A stranger is not listened to for long.
                with contextlib.suppress(OSError):
                    writer.write_eof()
                    answer = await reader.read()
                assert answer == b"" or answer.startswith(b"refused ")
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            b.start()
            await world_of(0, a, b)

    asyncio.run(scenario())


def test_many_who_say_nothing_keep_nobody_out(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b), contextlib.AsyncExitStack() as silent:
            a.start()
            await until(lambda: listening(job.port))
            readers = []
            for _ in range(2 * MOST_STRANGERS):
                reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
                silent.callback(writer.close)
                readers.append(reader)
            b.start()
            await world_of(0, a, b)
            assert sum(not reader.at_eof() for reader in readers) <= MOST_STRANGERS

    asyncio.run(scenario())


def test_the_meeting_point_outlives_a_moment_without_descriptors(
    job: HubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, tries = BaseSelectorEventLoop.sock_accept, itertools.count()

    async def tired(loop: BaseSelectorEventLoop, listening: socket.socket) -> tuple[socket.socket, Any]:
        if next(tries) < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await accept(loop, listening)

    monkeypatch.setattr(BaseSelectorEventLoop, "sock_accept", tired)

    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)
            assert next(tries) > 3

    asyncio.run(scenario())


def test_who_does_not_read_is_dropped(job: HubSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MOST_UNREAD", 65536)

    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            await until(lambda: listening(job.port))
            with socket.socket() as rude:
                rude.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                rude.connect(("127.0.0.1", job.port))
                rude.setblocking(False)
                settings = {"nproc": "2", "nnodes": "2:2"}
                hello = Hello("job", "rude", "host-rude", 1, "127.0.0.1", 9, "", settings)
                wish = frame("exclude", wish_frame("x" * 400, ExclusionWish("nobody" * 50)))
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(rude, frame("hello", hello.encode()))
                with pytest.raises(ConnectionError):
                    for _ in range(200_000):
                        await loop.sock_sendall(rude, wish)
            b.start()
            await world_of(0, a, b)

    asyncio.run(scenario())


def test_a_taken_port_and_a_missing_host_end_in_one_line(job: HubSettings, port: int) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", port)):
            async with agents(replace(job, is_host=True), "a") as (a,):
                a.start()
                failed = await a.hear(JoinFailed)
                assert f"port {port}: Address already in use" in failed.reason
        async with agents(replace(job, is_host=False, join_timeout_s=0.5), "a") as (a,):
            a.start()
            failed = await a.hear(JoinFailed)
            assert f"127.0.0.1:{port} cannot be reached: Connection refused" in failed.reason

    asyncio.run(scenario())


def test_spares_hear_what_to_import_ahead_and_nobody_else_does(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b", "early", "late") as (a, b, early, late):
            await taught_early_and_late(a, b, early, late)

    asyncio.run(scenario())


def test_an_agent_that_is_being_torn_down_is_looked_at_again(job: HubSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer port may still be open when its connection to the host has ended already."""
    answers = [Proof.NOTHING, Proof.NOTHING]

    async def probed(*given: object) -> Proof:
        return answers.pop() if answers else Proof.GONE

    monkeypatch.setattr(server, "probe", probed)

    async def scenario() -> None:
        async with proxy(job.port) as way:
            behind = replace(job, port=way.port, is_host=False)
            async with agents(job, "a") as (a,), agents(behind, "b") as (b,):
                a.start()
                b.start()
                await world_of(0, a, b)
                way.freeze()
                way.cut()
                assert (await a.hear(PeerFailed, 0)).node_id == "b"

    asyncio.run(scenario())


def healed(way: Proxy) -> None:
    way.cut()
    way.thaw()


def test_who_is_cut_off_has_stopped_before_the_others_know(job: HubSettings) -> None:
    chance = random.Random(3)

    async def one_round(job: HubSettings) -> None:
        async with proxy(job.port) as way:
            cut_off = replace(job, port=way.port, is_host=False)
            async with agents(job, "a") as (a,), agents(cut_off, "b") as (b,):
                await cut_off_while_running(a, b, way, lambda: healed(way), chance.uniform(0.0, 0.5))

    async def scenario() -> None:
        holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        ports = [holder.getsockname()[1] for holder in holders]
        for holder in holders:
            holder.close()
        await asyncio.gather(*(one_round(replace(job, port=port, node_timeout_s=2.0)) for port in ports))

    asyncio.run(scenario())


def test_who_has_finished_waits_for_the_others_and_not_for_the_host(job: HubSettings) -> None:
    job = replace(job, node_timeout_s=2.0)

    async def scenario() -> None:
        async with proxy(job.port) as way:
            behind = replace(job, port=way.port, is_host=False)
            async with agents(job, "a") as (a,), agents(behind, "b") as (b,):
                await waits_as_long_as_it_is_in_touch(a, b, way)

    asyncio.run(scenario())


def test_a_host_that_has_finished_stays_for_the_others(job: HubSettings) -> None:
    async def scenario() -> None:
        async with agents(job, "a", "b") as (a, b):
            a.start()
            await until(lambda: a.rendezvous._hub is not None)
            b.start()
            await world_of(0, a, b)
            waiting = asyncio.ensure_future(a.finish(0, limit_s=0.3))
            await asyncio.wait({waiting}, timeout=2.0)
            assert not waiting.done(), "it has left, and taken the meeting point away"
            assert await asyncio.gather(waiting, b.finish(0)) == [0, 0]

    asyncio.run(scenario())


def test_who_is_cut_off_while_it_finishes_is_called_back_once_the_cut_heals(job: HubSettings) -> None:
    job = replace(job, node_timeout_s=2.0)

    async def scenario() -> None:
        async with proxy(job.port) as way:
            cut_off = replace(job, port=way.port, is_host=False)
            async with agents(job, "a") as (a,), agents(cut_off, "b") as (b,):
                waiting = await cut_off_while_finishing(a, b, way)
                assert await asyncio.gather(*waiting, a.finish(1), b.finish(1)) == [0] * 4

    asyncio.run(scenario())


def test_who_waits_at_the_end_for_a_host_that_is_gone_ends_with_its_own_result(job: HubSettings) -> None:
    job = replace(job, node_timeout_s=2.0)

    async def scenario() -> None:
        async with agents(job, "a") as (a,):
            a.start()
            await until(lambda: a.rendezvous._hub is not None)
            async with agents(replace(job, is_host=False), "b") as (b,):
                b.start()
                await world_of(0, a, b)
                waiting = asyncio.ensure_future(b.finish(0, code=0, limit_s=60.0))
                await a.rendezvous.close()
                a.started = False
                assert await asyncio.wait_for(waiting, 20.0) == 0

    asyncio.run(scenario())
