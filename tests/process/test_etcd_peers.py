"""Telling a dead process from a silent one, by its host's kernel; and threads that must not die in silence."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from ftlaunch.rendezvous.common.peers import Doorbell, Proof, next_in_ring, probe, visit, watch_over
from ftlaunch.rendezvous.common.records import Seat
from ftlaunch.rendezvous.etcd import EtcdSettings
from ftlaunch.rendezvous.etcd.settings import parse_endpoints
from ftlaunch.rendezvous.interface import LeaseLost
from support.agents import agents, programs, until, world_of
from support.etcd import EtcdCluster, etcd
from support.needs import needs_etcd
from support.waiting import wait_until

_jobs = count()


def seat(name: str, port: int) -> Seat:
    return Seat(name, f"host-{name}", "127.0.0.1", 1, port)


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdCluster]:
    with etcd() as cluster:
        yield cluster


def test_what_a_try_to_connect_proves() -> None:
    async def scenario() -> None:
        bell = Doorbell("n1")
        port = bell.open()
        for address in ("127.0.0.1", "::1"):
            assert await probe(address, port, "n1") is Proof.ALIVE
        # Somebody else at that port: who had it before is gone.
        assert await probe("127.0.0.1", port, "n2") is Proof.GONE
        bell.close()
        assert await probe("127.0.0.1", port, "n1") is Proof.GONE

    asyncio.run(scenario())


def test_silence_proves_nothing() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            found = await visit("127.0.0.1", mute.getsockname()[1], "n1", timeout_s=0.1)
            assert found.proof is Proof.NOTHING

    asyncio.run(scenario())


def test_a_broken_connection_is_no_proof_while_the_process_answers() -> None:
    async def scenario() -> None:
        bell, gone = Doorbell("n1"), list[Seat]()
        port = bell.open()
        watching = asyncio.ensure_future(watch_over(seat("n1", port), gone.append))
        for _ in range(3):
            await until(lambda: len(bell._visitors) == 1)
            for visitor in list(bell._visitors):
                bell._part(visitor)
        await until(lambda: len(bell._visitors) == 1)
        assert not gone
        bell.close()
        await until(lambda: gone)
        await watching

    asyncio.run(scenario())


def test_a_refusal_alone_is_no_proof() -> None:
    async def scenario() -> None:
        gone = list[Seat]()
        # A firewall that refuses on behalf of a host it cannot reach looks like this.
        watching = asyncio.ensure_future(watch_over(seat("n1", 9), gone.append))
        await asyncio.wait({watching}, timeout=0.3)
        assert not gone
        watching.cancel()

    asyncio.run(scenario())


def test_each_node_watches_over_the_next_few() -> None:
    seats = tuple(seat(name, 1) for name in "abcde")

    def watched(members: tuple[Seat, ...], name: str) -> str:
        return "".join(found.node_id for found in next_in_ring(members, name))

    assert [watched(seats, name) for name in "abcde"] == ["bcd", "cde", "dea", "eab", "abc"]
    assert watched(seats[:2], "b") == "a"
    assert watched(seats[:1], "a") == ""
    assert watched(seats, "x") == ""


@needs_etcd
def test_neighbours_that_die_together_are_all_found_at_once(server: EtcdCluster) -> None:
    with programs(
        server.endpoints, "2:4", *"abcd", job="two-killed", node_timeout="60", last_call_timeout="1"
    ) as everybody:
        for program in everybody:
            program.start()
        world = everybody[0].hear_world(*"abcd")
        order, first = world["order"], world["generation"]
        # By now everybody has met its neighbours.
        wait_until(lambda: all(len(program.ticks(first)) > 25 for program in everybody), 15.0)
        by_name = {program.name: program for program in everybody}
        # Two in a row: the one that watches over the second is dead itself.
        killed = by_name[order[1]].send(signal.SIGKILL)
        by_name[order[2]].send(signal.SIGKILL)
        for name in (order[0], order[3]):
            agreed = by_name[name].hear_world(order[0], order[3], after=first)
            assert agreed["order"] == [order[0], order[3]]
            assert agreed["at"] - killed < 15.0, "far less than the node timeout"


def alone(server: EtcdCluster) -> EtcdSettings:
    return EtcdSettings(parse_endpoints(server.endpoints)[0], f"job-{next(_jobs)}", node_timeout_s=2.0)


@needs_etcd
def test_a_loop_that_is_held_up_loses_no_lease(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with agents(alone(server), "a") as (a,):
            a.start()
            await world_of(0, a)
            # As when a log file lies on a disk that hangs.
            threading.Event().wait(3.0)
            await asyncio.sleep(0.1)
            assert not a.heard

    asyncio.run(scenario())


@needs_etcd
def test_the_end_of_the_etcd_thread_is_the_end_of_trust(server: EtcdCluster) -> None:
    async def scenario() -> None:
        async with agents(alone(server), "a") as (a,):
            a.start()
            await world_of(0, a)
            await a.rendezvous._io.stop(2.0)
            lost = await a.hear(LeaseLost, 0)
            assert "thread has ended" in lost.reason or "renewal" in lost.reason

    asyncio.run(scenario())
