"""From a failure to the next generation, or to the end: the parts that several transitions share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import (
    Action,
    Announce,
    Conclude,
    Join,
    Leave,
    Manner,
    Record,
    StartWorkers,
    StopWorkers,
    WakeAt,
)
from ftlaunch.launcher.decision.generations import GenerationRecord
from ftlaunch.launcher.decision.policy import Verdict
from ftlaunch.launcher.decision.resume_point import resume_path, resume_step
from ftlaunch.launcher.decision.state import Ending, Judge, Origin, Phase, Recovery, State, WorkerState
from ftlaunch.launcher.exit_codes import from_wait_status
from ftlaunch.rendezvous.interface import Joining, Outcome, World

SAVED = "saved"
"""What nodes offer, and the leader shares: [a generation that ended, checkpoints heard of in it]."""

Step = tuple[State, tuple[Action, ...]]


def fail(state: State, failure: ev.Failure, now: float, judge: Judge) -> Step:
    """The generation has failed: judge it, stop what runs, tell the others, and join the next one meanwhile."""
    history = (*state.history, record_of(state, failure))
    verdict = judge(history, now)
    if failure.kind is ev.FailureKind.PEER:
        # The node whose rank failed decides for all: it closes the job when it is over, and waits when that is wise.
        going_on = Verdict(True, "going on as the node that failed decides", counts=False)
        verdict = replace(verdict, delay_s=0.0) if verdict.restart else going_on
    manner = _manner(failure)
    state = replace(state, failure=failure, history=history, phase=Phase.STOPPING, manner=manner)
    evidence = failure.kind is ev.FailureKind.STALL
    stop = StopWorkers(failure.generation, manner, failure.reason, evidence=evidence)
    state, actions = _adopt(state, failure, verdict, now)
    if verdict.restart and failure.own:
        actions = (Announce(failure.generation, failure.reason), *actions)
    return state, (_said("failure_detected", failure), stop, *actions)


def reattribute(state: State, failure: ev.Failure, now: float, judge: Judge) -> Step:
    """Another rank than thought was the first to fail: judge again; the stop under way goes on as it is."""
    record = record_of(state, failure)
    # The others may have told of more already.
    record = replace(record, checkpoints=max(record.checkpoints, state.history[-1].checkpoints))
    history = (*state.history[:-1], record)
    verdict = judge(history, now)
    state = replace(state, failure=failure, history=history)
    said = _said("cause_corrected", failure)
    if verdict.restart and state.recovery is not None:
        return state, (said, Conclude(failure, True, verdict.reason))
    if verdict.restart and state.ending is not None and state.ending.origin is not Origin.JUDGED:
        # Somebody asked the job to end meanwhile.
        return state, (said,)
    state, actions = _adopt(replace(state, ending=None), failure, verdict, now)
    return state, (said, *actions)


def _said(name: str, failure: ev.Failure) -> Record:
    fields = {"kind": failure.kind.value, "at": failure.at, "step": failure.step}
    return Record(name, failure.generation, failure.reason, failure.local_rank, fields=fields)


def _adopt(state: State, failure: ev.Failure, verdict: Verdict, now: float) -> Step:
    """Do what the verdict says: end, or begin to recover."""
    conclude = Conclude(failure, verdict.restart, verdict.reason)
    if not verdict.restart:
        ending = Ending(Outcome.FAILED, verdict.exit_code, verdict.reason, origin=Origin.JUDGED)
        return replace(state, ending=ending, recovery=None), (conclude,)
    recovery = Recovery(not_before=now + verdict.delay_s, delayed=verdict.delay_s > 0, counts=verdict.counts)
    join = () if state.joins_late else (join_next(state, recovery),)
    wake = (WakeAt(failure.generation, recovery.not_before),) if recovery.delayed else ()
    return replace(state, recovery=recovery), (*join, conclude, *wake)


def is_agreed(state: State, generation: int) -> bool:
    """Whether this is the generation that was agreed on, and whose ranks were not started here yet."""
    world = state.recovery.world if state.recovery is not None else None
    return world is not None and world.generation == generation


def forgo(state: State, generation: int, reason: str) -> Step:
    """The generation that was agreed on ended before its ranks were started here: ask for the one after it."""
    if state.recovery is None:
        return state, ()
    join = Join(Joining(generation + 1, state.slots, state.recovery.counts))
    record = Record("generation_missed", generation, reason)
    return replace(state, growth="", recovery=replace(state.recovery, world=None)), (record, join)


def join_next(state: State, recovery: Recovery) -> Join:
    """Ask for the generation after this one, and offer what only this node may have heard of the last one."""
    offers = {SAVED: [state.generation, state.history[-1].checkpoints]} if state.history else {}
    return Join(Joining(state.generation + 1, state.slots, recovery.counts, offers))


def most_saved(offers: Sequence[Mapping[str, Any]]) -> list[int]:
    """The latest generation that is told of, by the node that heard of most: often rank 0 saves alone."""
    told = (offer.get(SAVED) for offer in offers)
    return max((one for one in told if isinstance(one, list) and list(map(type, one)) == [int, int]), default=[-1, 0])


def with_saved(state: State, world: World) -> State:
    """The last generation's record, corrected by what the other nodes have heard."""
    generation, saved = most_saved([world.shared])
    if not state.history or state.history[-1].generation != generation:
        return state
    last = state.history[-1]
    return replace(state, history=(*state.history[:-1], replace(last, checkpoints=max(last.checkpoints, saved))))


def _manner(failure: ev.Failure) -> Manner:
    # Fencing leaves no time for anybody's grace.
    return Manner.NOW if failure.kind is ev.FailureKind.LEASE else Manner.FAILED


def start_if_ready(state: State, now: float) -> Step:
    """Start the next generation once nothing of the old one is left, the GPUs are free and the world is agreed on."""
    recovery = state.recovery
    if recovery is None or recovery.world is None or not recovery.stopped or not recovery.reclaimed:
        return state, ()
    if recovery.delayed and now < recovery.not_before:
        return state, ()
    world = recovery.world
    spent = world.restart_count if state.generation < 0 else state.spent_before
    workers = {local_rank: WorkerState(local_rank) for local_rank in range(state.slots)}
    state = replace(
        state,
        phase=Phase.STARTING,
        generation=world.generation,
        world=world,
        spent_before=spent,
        workers=workers,
        failure=None,
        recovery=None,
        manner=None,
        beaten=False,
        progress=Progress(),
        started_at=now,
    )
    return state, (StartWorkers(world),)


def finish_stop(state: State) -> Step:
    """Nothing runs any more and the job is to end here: leave with the right code."""
    ending = state.ending
    if ending is None:
        return state, ()
    code = _ending_code(state, ending)
    leave = Leave(state.generation, ending.outcome, code, ending.reason)
    return replace(state, phase=Phase.LEAVING, ending=replace(ending, exit_code=code)), (leave,)


def _ending_code(state: State, ending: Ending) -> int:
    if ending.clean_exit_code is not None and state.all_succeeded:
        return ending.clean_exit_code
    if ending.exit_code is not None:
        return ending.exit_code
    failure = state.failure
    return from_wait_status(failure.exit_code) if failure is not None and failure.exit_code else 1


def record_of(state: State, failure: ev.Failure) -> GenerationRecord:
    """What the restart policy needs to know of the generation that just failed."""
    words = failure.words or LastWords()
    progress = failure.progress
    return GenerationRecord(
        generation=failure.generation,
        kind=failure.kind.value,
        ended_at=failure.at,
        exit_code=failure.exit_code,
        exception=words.exception,
        place=words.place,
        message=words.message or (failure.reason if failure.kind is ev.FailureKind.REQUEST else ""),
        error_number=words.errno,
        beaten=progress.beaten or state.beaten,
        step=progress.step,
        ticks=progress.ticks,
        failed_step=words.step,
        failed_ticks=words.ticks,
        checkpoints=progress.checkpoints,
        checkpoint_step=progress.checkpoint_step,
        resume_from=resume_path(state.world),
        resume_step=resume_step(state.world),
        uptime_s=failure.at - state.started_at,
    )
