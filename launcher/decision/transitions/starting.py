"""Joining a generation and starting its ranks."""

from __future__ import annotations

from dataclasses import replace

from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import Join, Manner, Record, WarmUp
from ftlaunch.launcher.decision.recover import start_if_ready, with_saved
from ftlaunch.launcher.decision.resume_point import resume_path
from ftlaunch.launcher.decision.state import Ending, Judge, Phase, Recovery, State
from ftlaunch.launcher.decision.table import ALIVE, CLEARING, EVERYWHERE, Decision, end, ignore, on
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.rendezvous import interface as rdzv
from ftlaunch.rendezvous.interface import Joining, Outcome


@on(ev.Started, Phase.JOINING)
def _started(state: State, event: ev.Started, now: float, judge: Judge) -> Decision:
    recovery = Recovery(stopped=True, reclaimed=True)
    join = Join(Joining(generation=0, slots=state.slots, counted=False))
    return Decision(replace(state, recovery=recovery), (Record("job_started"), join), "joining the first generation")


@on(rdzv.WorldAgreed, Phase.JOINING, Phase.STOPPING, Phase.RECLAIMING)
def _world_agreed(state: State, event: rdzv.WorldAgreed, now: float, judge: Judge) -> Decision:
    if state.recovery is None or state.ending is not None:
        return ignore(state, "the next generation is not wanted any more")
    world = event.world
    if world.generation <= state.generation:
        return ignore(state, f"generation {world.generation} is over already")
    record = Record(
        "rendezvous_completed",
        world.generation,
        fields={
            "nodes": len(world.members),
            "world_size": world.world_size,
            "group_rank": world.group_rank,
            **{key: world.shared[key] for key in ("resume_step", "resume_reason") if key in world.shared},
            **({"resume_from": resume_path(world) or ""} if "resume_from" in world.shared else {}),
        },
    )
    if "refused" in world.shared:
        told = world.shared.get("refused_code")
        code = told if type(told) is int and told in range(256) else ExitCode.NO_PROGRESS
        return end(state, Ending(Outcome.FAILED, code, str(world.shared["refused"])), Manner.NOW)
    state = with_saved(replace(state, growth="", parked=False, recovery=replace(state.recovery, world=world)), world)
    state, actions = start_if_ready(state, now)
    return Decision(state, (record, *actions), f"generation {world.generation} agreed on")


@on(rdzv.WorldAgreed, Phase.STARTING, Phase.RUNNING, Phase.LEAVING, Phase.DONE)
def _world_late(state: State, event: rdzv.WorldAgreed, now: float, judge: Judge) -> Decision:
    return ignore(state, "not waiting for a generation")


@on(rdzv.Parked, *EVERYWHERE)
def _parked(state: State, event: rdzv.Parked, now: float, judge: Judge) -> Decision:
    record = Record("parked", event.generation, event.reason, say=True)
    waits = state.recovery is not None and state.recovery.world is None
    return Decision(replace(state, parked=waits), (record,), event.reason)


@on(rdzv.Lesson, *EVERYWHERE)
def _taught(state: State, event: rdzv.Lesson, now: float, judge: Judge) -> Decision:
    if state.phase is not Phase.JOINING:
        return ignore(state, "the ranks of this node teach their own standbys")
    return Decision(state, (WarmUp(event),), f"{len(event.names)} modules may be imported ahead")


@on(rdzv.JoinFailed, Phase.JOINING, *CLEARING)
def _join_failed(state: State, event: rdzv.JoinFailed, now: float, judge: Judge) -> Decision:
    return end(state, Ending(Outcome.LEFT, ExitCode.RENDEZVOUS, event.reason), Manner.NOW)


@on(rdzv.JoinFailed, Phase.STARTING, Phase.RUNNING, Phase.LEAVING, Phase.DONE)
def _join_failed_late(state: State, event: rdzv.JoinFailed, now: float, judge: Judge) -> Decision:
    return ignore(state, "not waiting for a generation")


@on(ev.WorkersStarted, Phase.STARTING)
def _workers_started(state: State, event: ev.WorkersStarted, now: float, judge: Judge) -> Decision:
    state = state.with_pids(event.pids)
    record = Record("workers_started", event.generation, fields={"pids": list(event.pids), "warm": event.warm})
    return Decision(replace(state, phase=Phase.RUNNING), (record,), f"{len(event.pids)} ranks started")


@on(ev.WorkersStarted, Phase.JOINING, *CLEARING, Phase.LEAVING, Phase.DONE)
def _started_in_vain(state: State, event: ev.WorkersStarted, now: float, judge: Judge) -> Decision:
    return ignore(state, "the generation is being stopped already")


@on(ev.FirstBeat, *EVERYWHERE)
def _first_beat(state: State, event: ev.FirstBeat, now: float, judge: Judge) -> Decision:
    if state.phase not in ALIVE or state.beaten:
        return ignore(state, "the first beat was heard already")
    record = Record("training_resumed", event.generation)
    return Decision(replace(state, beaten=True), (record,), "training goes on")
