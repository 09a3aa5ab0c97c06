"""Clearing a generation away, and going on or leaving."""

from __future__ import annotations

from dataclasses import replace

from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import Exit, Leave, Manner, Reclaim, Record
from ftlaunch.launcher.decision.recover import finish_stop, join_next, start_if_ready
from ftlaunch.launcher.decision.state import Ending, Judge, Phase, State
from ftlaunch.launcher.decision.table import ALIVE, CLEARING, EVERYWHERE, Decision, end, ignore, on
from ftlaunch.launcher.errors import InvalidTransition
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.rendezvous import interface as rdzv
from ftlaunch.rendezvous.interface import Outcome


@on(ev.WorkersGone, Phase.STOPPING)
def _workers_gone(state: State, event: ev.WorkersGone, now: float, judge: Judge) -> Decision:
    record = Record("workers_stopped", event.generation)
    if state.ending is not None:
        state, actions = finish_stop(state)
        return Decision(state, (record, *actions), "no worker is left")
    if state.recovery is None:
        raise InvalidTransition("workers are gone, but neither a recovery nor an ending was decided")
    state = replace(state, phase=Phase.RECLAIMING, recovery=replace(state.recovery, stopped=True))
    joins = (join_next(state, state.recovery),) if state.joins_late and state.recovery is not None else ()
    return Decision(state, (record, *joins, Reclaim(event.generation)), "no worker is left")


@on(ev.WorkersUnkillable, Phase.STOPPING)
def _unkillable(state: State, event: ev.WorkersUnkillable, now: float, judge: Judge) -> Decision:
    ending = Ending(Outcome.LEFT, ExitCode.UNHEALTHY, event.reason)
    record = Record("workers_unkillable", event.generation, event.reason, say=True)
    leave = Leave(state.generation, ending.outcome, ExitCode.UNHEALTHY, event.reason)
    state = replace(state, phase=Phase.LEAVING, ending=ending, recovery=None)
    return Decision(state, (record, leave), event.reason)


@on(ev.Reclaimed, Phase.RECLAIMING)
def _reclaimed(state: State, event: ev.Reclaimed, now: float, judge: Judge) -> Decision:
    if state.recovery is None:
        raise InvalidTransition("GPUs reclaimed without a recovery under way")
    recovery = replace(state.recovery, reclaimed=True)
    state, actions = start_if_ready(replace(state, phase=Phase.JOINING, recovery=recovery), now)
    return Decision(state, (Record("gpu_reclaimed", event.generation), *actions), "the GPUs are free")


@on(ev.NodeUnhealthy, Phase.JOINING, *ALIVE, *CLEARING)
def _unhealthy(state: State, event: ev.NodeUnhealthy, now: float, judge: Judge) -> Decision:
    if state.ending is not None:
        return ignore(state, "this node is about to leave anyway")
    return end(state, Ending(Outcome.LEFT, ExitCode.UNHEALTHY, event.reason), Manner.FAILED)


@on(ev.BackoffOver, *EVERYWHERE)
def _backoff_over(state: State, event: ev.BackoffOver, now: float, judge: Judge) -> Decision:
    if state.recovery is None:
        return ignore(state, "no restart is waiting")
    state, actions = start_if_ready(replace(state, recovery=replace(state.recovery, delayed=False)), now)
    return Decision(state, actions, "the back-off is over")


@on(ev.Left, Phase.LEAVING)
def _left(state: State, event: ev.Left, now: float, judge: Judge) -> Decision:
    reason = event.reason or (state.ending.reason if state.ending is not None else "")
    record = Record("job_finished", state.generation, reason, fields={"exit_code": event.exit_code})
    return Decision(replace(state, phase=Phase.DONE), (record, Exit(event.exit_code, reason)), reason)


@on(ev.WorkersGone, Phase.RECLAIMING, Phase.LEAVING, Phase.DONE)
@on(ev.WorkersUnkillable, Phase.LEAVING, Phase.DONE)
@on(ev.WorkerExited, Phase.JOINING, Phase.LEAVING, Phase.DONE)
@on(ev.WorkerFailing, Phase.JOINING, Phase.LEAVING, Phase.DONE)
@on(ev.WorkerStalled, Phase.JOINING, Phase.LEAVING, Phase.DONE)
@on(ev.Reclaimed, Phase.LEAVING, Phase.DONE)
@on(ev.NodeUnhealthy, Phase.LEAVING, Phase.DONE)
@on(ev.Left, *(phase for phase in Phase if phase is not Phase.LEAVING))
def _late(state: State, event: ev.Event, now: float, judge: Judge) -> Decision:
    return ignore(state, f"{type(event).__name__} is too late to matter")


@on(ev.WorkerStalled, *CLEARING)
@on(ev.SpawnFailed, *CLEARING)
@on(ev.RestartRequested, Phase.JOINING, *CLEARING, Phase.LEAVING, Phase.DONE)
@on(rdzv.PeerFailed, Phase.DONE)
@on(rdzv.MembershipChanged, Phase.LEAVING, Phase.DONE)
@on(rdzv.LeaseLost, Phase.LEAVING, Phase.DONE)
def _moot(state: State, event: ev.Event, now: float, judge: Judge) -> Decision:
    return ignore(state, f"{type(event).__name__} makes no difference while {state.phase.value}")
