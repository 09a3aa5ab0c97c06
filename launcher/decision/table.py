"""The decision table: (phase, type of event) -> handler. Filled by :mod:`.transitions` at import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.launcher.decision.actions import Action, Manner, Record, StopWorkers
from ftlaunch.launcher.decision.recover import finish_stop
from ftlaunch.launcher.decision.state import Ending, Judge, Phase, State


@dataclass(frozen=True)
class Decision:
    """The answer to one event."""

    state: State
    actions: tuple[Action, ...]
    reason: str


Handler = Callable[[State, Any, float, Judge], Decision]
TABLE: dict[tuple[Phase, type], Handler] = {}
EVERYWHERE = tuple(Phase)
ALIVE = (Phase.STARTING, Phase.RUNNING)
CLEARING = (Phase.STOPPING, Phase.RECLAIMING)


def on(event: type, *phases: Phase) -> Callable[[Handler], Handler]:
    """Enter the decorated handler for this event in these phases; a pair can be entered only once."""

    def enter(handler: Handler) -> Handler:
        for phase in phases:
            if TABLE.setdefault((phase, event), handler) is not handler:
                raise KeyError(f"two handlers for {event.__name__} in phase {phase.value}")
        return handler

    return enter


def ignore(state: State, reason: str) -> Decision:
    """Nothing changes."""
    return Decision(state, (), reason)


def decided(step: tuple[State, tuple[Action, ...]], reason: str) -> Decision:
    """A step of :mod:`ftlaunch.launcher.decision.recover` with its reason."""
    return Decision(step[0], step[1], reason)


def end(state: State, ending: Ending, manner: Manner, signum: int = 15) -> Decision:
    """End the job: stop what runs, then leave."""
    say = manner is not Manner.SWEEP
    record = Record("job_ending", state.generation, ending.reason, say=say)
    state = replace(state, ending=ending, recovery=None)
    if state.phase in (Phase.JOINING, Phase.RECLAIMING):
        state, actions = finish_stop(state)
        return Decision(state, (record, *actions), ending.reason)
    if state.phase is Phase.STOPPING and not _more_urgent(manner, state.manner):
        return Decision(state, (record,), ending.reason)
    stop = StopWorkers(state.generation, manner, ending.reason, signum)
    return Decision(replace(state, phase=Phase.STOPPING, manner=manner), (record, stop), ending.reason)


def _more_urgent(manner: Manner, current: Manner | None) -> bool:
    order = (Manner.SWEEP, Manner.POLITE, Manner.FAILED, Manner.NOW)
    return current is None or order.index(manner) > order.index(current)
