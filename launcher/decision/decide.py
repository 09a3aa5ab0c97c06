"""What the agent does next: a pure function of (state, event, now), as one table.

:func:`decide` never reads a clock, touches no process and logs nothing. It returns the new state, the actions to carry
out in order, and the reason in one sentence. A pair that is missing in the table is a defect and raises
:class:`~ftlaunch.launcher.errors.InvalidTransition`.
"""

from __future__ import annotations

from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.state import Judge, State
from ftlaunch.launcher.decision.table import Decision, ignore
from ftlaunch.launcher.decision.transitions import TABLE
from ftlaunch.launcher.errors import InvalidTransition


def decide(state: State, event: ev.Event, now: float, judge: Judge) -> Decision:
    """Answer one event. ``now`` is CLOCK_MONOTONIC seconds; ``judge`` is the restart policy.

    Raises :class:`InvalidTransition` for an event that cannot happen in this phase.
    """
    generation = getattr(event, "generation", None)
    if generation is not None and generation < state.generation:
        return ignore(state, f"{type(event).__name__} of generation {generation} is stale")
    handler = TABLE.get((state.phase, type(event)))
    if handler is None:
        raise InvalidTransition(f"{type(event).__name__} in phase {state.phase.value}")
    return handler(state, event, now, judge)
