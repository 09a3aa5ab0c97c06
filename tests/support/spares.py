"""Simulated spares that are taught what to import ahead, whatever the backend."""

from __future__ import annotations

from ftlaunch.rendezvous.interface import Lesson, Parked
from support.agents import Agent, world_of


async def taught_early_and_late(a: Agent, b: Agent, early: Agent, late: Agent) -> None:
    """``early`` is there before the node with rank 0 teaches, ``late`` comes after it; nobody at work hears of it."""
    first = Lesson(("torch", "numpy"), {"OMP_NUM_THREADS": "1", "GONE": None})
    second = Lesson(("torch",), {})
    a.start()
    b.start()
    order = await world_of(0, a, b)
    teacher = next(agent for agent in (a, b) if agent.name == order[0])
    early.start()
    await early.hear(Parked, 0)
    teacher.rendezvous.teach(first)
    assert await early.hear(Lesson) == first
    late.start()
    assert await late.hear(Lesson) == first
    teacher.rendezvous.teach(first)
    teacher.rendezvous.teach(second)
    assert [await early.hear(Lesson), await late.hear(Lesson)] == [second, second]
    assert not [event for event in (*a.heard, *b.heard) if isinstance(event, Lesson)]
