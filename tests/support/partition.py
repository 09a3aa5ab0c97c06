"""Two simulated agents, one of which is cut off for a while: what must follow, whatever the backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftlaunch.rendezvous.interface import LeaseLost, PeerFailed
from support.agents import Agent, world_of
from support.proxy import Proxy


async def cut_off_while_running(a: Agent, b: Agent, way: Proxy, heal: Callable[[], None], pause_s: float) -> None:
    """``b`` is cut off ``pause_s`` seconds into generation 0: it has stopped before ``a`` knows, and comes back."""
    a.start()
    b.start()
    await world_of(0, a, b)
    await asyncio.sleep(pause_s)
    way.freeze()
    hearing = asyncio.ensure_future(a.hear(PeerFailed, 0))
    await b.hear(LeaseLost, 0)
    assert not hearing.done(), "a was told that b is lost while b's workers were running"
    assert (await hearing).node_id == "b"
    a.join(1)
    heal()
    b.join(1)
    await world_of(1, a, b)


async def waits_as_long_as_it_is_in_touch(a: Agent, b: Agent, way: Proxy) -> None:
    """``b`` has finished, ``a`` works on: ``b`` waits longer than it would for a meeting point that is out of reach."""
    a.start()
    b.start()
    await world_of(0, a, b)
    waiting = asyncio.ensure_future(b.finish(0, limit_s=0.3))
    await asyncio.wait({waiting}, timeout=2.0)
    assert not waiting.done(), "it has left, and would be missed if a failed"
    way.freeze()
    assert await waiting == 0


async def cut_off_while_finishing(a: Agent, b: Agent, way: Proxy) -> list[asyncio.Task[int]]:
    """``b`` is cut off and both have finished: it is called back once the cut heals. Returns who still waits."""
    a.start()
    b.start()
    await world_of(0, a, b)
    way.freeze()
    waiting = [asyncio.ensure_future(agent.finish(0, limit_s=60.0)) for agent in (a, b)]
    assert (await a.hear(PeerFailed, 0)).node_id == "b"
    a.join(1)
    assert not waiting[1].done()
    # What b had on the way when it was cut off is lost.
    way.cut()
    way.thaw()
    assert (await b.hear(PeerFailed, 0)).node_id == "b"
    b.join(1)
    await world_of(1, a, b)
    return waiting
