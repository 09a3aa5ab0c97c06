"""What the agent does next: a pure function of (state, event, now), as one table.

:func:`decide` never reads a clock, touches no process and logs nothing. It returns the new state, the actions to carry
out in order, and the reason in one sentence. A pair that is missing in the table is a defect and raises
:class:`~ftlaunch.launcher.errors.InvalidTransition` with the recent story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.launcher import events as ev
from ftlaunch.launcher.actions import (
    Action,
    Conclude,
    Exit,
    Join,
    Leave,
    Manner,
    Reclaim,
    Record,
    StartWorkers,
    StopWorkers,
    WakeAt,
)
from ftlaunch.launcher.errors import InvalidTransition
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.recover import begin_recovery, fail, finish_stop, start_if_ready
from ftlaunch.launcher.state import Ending, Judge, Phase, State, WorkerState, WorkerStatus
from ftlaunch.rendezvous import interface as rdzv
from ftlaunch.rendezvous.interface import Joining, Outcome


@dataclass(frozen=True)
class Decision:
    """The answer to one event."""

    state: State
    actions: tuple[Action, ...]
    reason: str


Handler = Callable[[State, Any, float, Judge], Decision]
_TABLE: dict[tuple[Phase, type], Handler] = {}
_EVERYWHERE = tuple(Phase)
_ALIVE = (Phase.STARTING, Phase.RUNNING)
_CLEARING = (Phase.STOPPING, Phase.RECLAIMING)


def decide(state: State, event: ev.Event, now: float, judge: Judge) -> Decision:
    """Answer one event. ``now`` is CLOCK_MONOTONIC seconds; ``judge`` is the restart policy.

    Raises :class:`InvalidTransition` for an event that cannot happen in this phase.
    """
    if _is_stale(state, event):
        return _ignore(state, f"{type(event).__name__} of generation {event.generation} is stale")  # type: ignore[union-attr]
    handler = _TABLE.get((state.phase, type(event)))
    if handler is None:
        raise InvalidTransition(f"{type(event).__name__} in phase {state.phase.value}")
    return handler(state, event, now, judge)


def _is_stale(state: State, event: ev.Event) -> bool:
    generation = getattr(event, "generation", None)
    return generation is not None and generation < state.generation


def _ignore(state: State, reason: str) -> Decision:
    return Decision(state, (), reason)


def _on(event: type, *phases: Phase) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        for phase in phases:
            _TABLE[phase, event] = handler
        return handler

    return enter


def _recovered(pair: tuple[State, tuple[Action, ...]], reason: str) -> Decision:
    return Decision(pair[0], pair[1], reason)


# --- joining and starting ---------------------------------------------------------------------------------------------


@_on(ev.Started, Phase.JOINING)
def _started(state: State, event: ev.Started, now: float, judge: Judge) -> Decision:
    recovery = replace(begin_recovery(), stopped=True, reclaimed=True)
    join = Join(Joining(generation=0, slots=state.slots, counted=False))
    return Decision(replace(state, recovery=recovery), (Record("job_started"), join), "joining the first generation")


@_on(rdzv.WorldAgreed, Phase.JOINING, Phase.STOPPING, Phase.RECLAIMING)
def _world_agreed(state: State, event: rdzv.WorldAgreed, now: float, judge: Judge) -> Decision:
    if state.recovery is None or state.ending is not None:
        return _ignore(state, "the next generation is not wanted any more")
    world = event.world
    if world.generation <= state.generation:
        return _ignore(state, f"generation {world.generation} is over already")
    record = Record(
        "rendezvous_completed",
        world.generation,
        fields={"nodes": len(world.members), "world_size": world.world_size, "group_rank": world.group_rank},
    )
    state = replace(state, recovery=replace(state.recovery, world=world))
    state, actions = start_if_ready(state, now)
    return Decision(state, (record, *actions), f"generation {world.generation} agreed on")


@_on(rdzv.WorldAgreed, Phase.STARTING, Phase.RUNNING, Phase.LEAVING, Phase.DONE)
def _world_late(state: State, event: rdzv.WorldAgreed, now: float, judge: Judge) -> Decision:
    return _ignore(state, "not waiting for a generation")


@_on(rdzv.Parked, *_EVERYWHERE)
def _parked(state: State, event: rdzv.Parked, now: float, judge: Judge) -> Decision:
    record = Record("parked", event.generation, event.reason, say=True)
    return Decision(state, (record,), event.reason)


@_on(rdzv.JoinFailed, Phase.JOINING, *_CLEARING)
def _join_failed(state: State, event: rdzv.JoinFailed, now: float, judge: Judge) -> Decision:
    return _end(state, Ending(Outcome.LEFT, ExitCode.RENDEZVOUS, event.reason), Manner.NOW)


@_on(rdzv.JoinFailed, Phase.STARTING, Phase.RUNNING, Phase.LEAVING, Phase.DONE)
def _join_failed_late(state: State, event: rdzv.JoinFailed, now: float, judge: Judge) -> Decision:
    return _ignore(state, "not waiting for a generation")


@_on(ev.WorkersStarted, Phase.STARTING)
def _workers_started(state: State, event: ev.WorkersStarted, now: float, judge: Judge) -> Decision:
    for local_rank, pid in enumerate(event.pids):
        state = state.with_worker(replace(state.workers[local_rank], pid=pid))
    record = Record("workers_started", event.generation, fields={"pids": list(event.pids), "warm": event.warm})
    return Decision(replace(state, phase=Phase.RUNNING), (record,), f"{len(event.pids)} ranks started")


@_on(ev.WorkersStarted, Phase.STOPPING, Phase.RECLAIMING, Phase.LEAVING, Phase.DONE)
def _started_in_vain(state: State, event: ev.WorkersStarted, now: float, judge: Judge) -> Decision:
    return _ignore(state, "the generation is being stopped already")


@_on(ev.FirstBeat, *_EVERYWHERE)
def _first_beat(state: State, event: ev.FirstBeat, now: float, judge: Judge) -> Decision:
    if state.phase not in _ALIVE or state.beaten:
        return _ignore(state, "the first beat was heard already")
    record = Record("training_resumed", event.generation)
    return Decision(replace(state, beaten=True), (record,), "training goes on")


# --- a rank ends ------------------------------------------------------------------------------------------------------


@_on(ev.WorkerFailing, *_ALIVE)
def _worker_failing(state: State, event: ev.WorkerFailing, now: float, judge: Judge) -> Decision:
    worker = state.workers[event.local_rank]
    if worker.status is not WorkerStatus.RUNNING:
        return _ignore(state, "said its last words before")
    words = event.words
    state = state.with_worker(replace(worker, status=WorkerStatus.FAILING, words=words))
    kind = ev.FailureKind.EXCEPTION if words.exception else ev.FailureKind.EXIT
    reason = f"{words.exception}: {words.message}" if words.exception else f"is exiting with code {words.exit_code}"
    failure = ev.Failure(
        kind, state.generation, now, reason, event.local_rank, words.exit_code, words, progress=event.progress
    )
    return _recovered(fail(state, failure, now, judge), reason)


@_on(ev.WorkerFailing, *_CLEARING)
def _words_while_stopping(state: State, event: ev.WorkerFailing, now: float, judge: Judge) -> Decision:
    worker = replace(state.workers[event.local_rank], words=event.words)
    return Decision(state.with_worker(worker), (), "heard while stopping")


@_on(ev.WorkerExited, *_ALIVE)
def _worker_exited(state: State, event: ev.WorkerExited, now: float, judge: Judge) -> Decision:
    state, record = _note_exit(state, event)
    if event.exit_code != 0:
        failure = _failure_of_exit(state, event)
        state, actions = fail(state, failure, now, judge)
        return Decision(state, (record, *actions), failure.reason)
    if not state.all_exited:
        return Decision(state, (record,), f"local rank {event.local_rank} has finished")
    ending = Ending(Outcome.FINISHED, ExitCode.SUCCESS, "all ranks succeeded")
    decision = _end(state, ending, Manner.SWEEP)
    return replace(decision, actions=(record, *decision.actions))


@_on(ev.WorkerExited, *_CLEARING)
def _exited_while_stopping(state: State, event: ev.WorkerExited, now: float, judge: Judge) -> Decision:
    state, record = _note_exit(state, event)
    failure = state.failure
    if failure is not None and failure.local_rank == event.local_rank and failure.kind is not ev.FailureKind.STALL:
        # The code of the rank whose last words were the failure; it can only be known now.
        state = replace(state, failure=replace(failure, exit_code=event.exit_code))
    return Decision(state, (record,), f"local rank {event.local_rank} is gone")


def _note_exit(state: State, event: ev.WorkerExited) -> tuple[State, Record]:
    worker = state.workers.get(event.local_rank, WorkerState(event.local_rank))
    exited = replace(worker, status=WorkerStatus.EXITED, exit_code=event.exit_code, exited_at=event.at)
    record = Record(
        "worker_exited",
        event.generation,
        local_rank=event.local_rank,
        fields={"exit_code": event.exit_code, "at": event.at},
    )
    return state.with_worker(exited), record


def _failure_of_exit(state: State, event: ev.WorkerExited) -> ev.Failure:
    from ftlaunch.launcher.exit_codes import signal_name

    words = state.workers[event.local_rank].words
    if event.exit_code < 0:
        kind, reason = ev.FailureKind.SIGNAL, f"was killed by {signal_name(-event.exit_code)}"
    else:
        kind, reason = ev.FailureKind.EXIT, f"exited with code {event.exit_code}"
    return ev.Failure(
        kind, event.generation, event.at, reason, event.local_rank, event.exit_code, words, progress=event.progress
    )


@_on(ev.WorkerStalled, *_ALIVE)
def _worker_stalled(state: State, event: ev.WorkerStalled, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(
        ev.FailureKind.STALL,
        event.generation,
        now,
        event.reason,
        event.local_rank,
        exit_code=-9,
        stall_kind=event.kind,
        progress=event.progress,
    )
    return _recovered(fail(state, failure, now, judge), event.reason)


@_on(ev.SpawnFailed, *_ALIVE)
def _spawn_failed(state: State, event: ev.SpawnFailed, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(
        ev.FailureKind.SPAWN, event.generation, now, event.reason, event.local_rank, exit_code=ExitCode.USAGE
    )
    return _recovered(fail(state, failure, now, judge), event.reason)


@_on(ev.WorkerStalled, *_CLEARING)
@_on(ev.SpawnFailed, *_CLEARING)
@_on(ev.RestartRequested, Phase.JOINING, *_CLEARING, Phase.LEAVING, Phase.DONE)
@_on(rdzv.PeerFailed, Phase.JOINING, *_CLEARING, Phase.DONE)
@_on(rdzv.MembershipChanged, Phase.JOINING, *_CLEARING, Phase.LEAVING, Phase.DONE)
@_on(rdzv.LeaseLost, Phase.LEAVING, Phase.DONE)
def _moot(state: State, event: ev.Event, now: float, judge: Judge) -> Decision:
    return _ignore(state, f"{type(event).__name__} makes no difference while {state.phase.value}")


# --- the others, and requests -----------------------------------------------------------------------------------------


@_on(rdzv.PeerFailed, *_ALIVE, Phase.LEAVING)
def _peer_failed(state: State, event: rdzv.PeerFailed, now: float, judge: Judge) -> Decision:
    if state.phase is Phase.LEAVING and not _waits_for_peers(state):
        return _ignore(state, "leaving for good")
    reason = f"node {event.node_id} failed: {event.reason}"
    failure = ev.Failure(ev.FailureKind.PEER, event.generation, now, reason)
    return _recovered(fail(replace(state, ending=None), failure, now, judge), reason)


def _waits_for_peers(state: State) -> bool:
    return state.ending is not None and state.ending.outcome is Outcome.FINISHED


@_on(rdzv.MembershipChanged, *_ALIVE)
def _membership_changed(state: State, event: rdzv.MembershipChanged, now: float, judge: Judge) -> Decision:
    if not event.urgent:
        record = Record("nodes_waiting", event.generation, event.reason, fields={"waiting": event.waiting})
        return Decision(state, (record,), "the waiting nodes are not needed now")
    failure = ev.Failure(ev.FailureKind.MEMBERSHIP, event.generation, now, event.reason)
    return _recovered(fail(state, failure, now, judge), event.reason)


@_on(rdzv.LeaseLost, *_ALIVE)
def _lease_lost(state: State, event: rdzv.LeaseLost, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(ev.FailureKind.LEASE, event.generation, now, event.reason)
    return _recovered(fail(state, failure, now, judge), event.reason)


@_on(rdzv.LeaseLost, Phase.JOINING, *_CLEARING)
def _lease_lost_while_stopping(state: State, event: rdzv.LeaseLost, now: float, judge: Judge) -> Decision:
    if state.phase is not Phase.STOPPING or state.manner is Manner.NOW:
        return _ignore(state, "no worker is running")
    # Fencing leaves no time for anybody's grace.
    stop = StopWorkers(state.generation, Manner.NOW, event.reason)
    return Decision(replace(state, manner=Manner.NOW), (stop,), event.reason)


@_on(rdzv.Closed, Phase.JOINING, *_ALIVE, *_CLEARING)
def _closed(state: State, event: rdzv.Closed, now: float, judge: Judge) -> Decision:
    return _end(state, Ending(Outcome.LEFT, event.exit_code, event.reason), Manner.NOW)


@_on(rdzv.Closed, Phase.LEAVING, Phase.DONE)
def _closed_late(state: State, event: rdzv.Closed, now: float, judge: Judge) -> Decision:
    return _ignore(state, "leaving already")


@_on(ev.RestartRequested, *_ALIVE)
def _restart_requested(state: State, event: ev.RestartRequested, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(
        ev.FailureKind.REQUEST, event.generation, now, event.reason, event.local_rank, progress=event.progress
    )
    return _recovered(fail(state, failure, now, judge), event.reason)


@_on(ev.StopRequested, Phase.JOINING, *_ALIVE, *_CLEARING)
def _stop_requested(state: State, event: ev.StopRequested, now: float, judge: Judge) -> Decision:
    by_script = event.local_rank is not None
    code = ExitCode.NO_PROGRESS if by_script else ExitCode.TERMINATED
    outcome = Outcome.FAILED if by_script else Outcome.LEFT
    return _end(state, Ending(outcome, code, event.reason, None if by_script else 0), Manner.POLITE)


@_on(ev.StopRequested, Phase.LEAVING, Phase.DONE)
def _stop_requested_late(state: State, event: ev.StopRequested, now: float, judge: Judge) -> Decision:
    return _ignore(state, "ending already")


@_on(ev.SignalReceived, Phase.JOINING, *_ALIVE, *_CLEARING)
def _signalled(state: State, event: ev.SignalReceived, now: float, judge: Judge) -> Decision:
    from ftlaunch.launcher.exit_codes import signal_name

    again = state.signals > 0
    reason = f"received {signal_name(event.signum)}" + (" again" if again else "")
    if again:
        return _second_signal(state, event, reason)
    ending = Ending(Outcome.LEFT, 128 + event.signum, reason, clean_exit_code=0)
    return _end(replace(state, signals=1), ending, Manner.POLITE, event.signum)


def _second_signal(state: State, event: ev.SignalReceived, reason: str) -> Decision:
    # Only SIGINT has impatient senders; a second SIGTERM comes from supervisors that signal a whole group.
    if event.signum != 2 or state.phase is not Phase.STOPPING:
        return _ignore(state, reason)
    stop = StopWorkers(state.generation, Manner.NOW, reason)
    state = replace(state, signals=state.signals + 1, manner=Manner.NOW)
    return Decision(state, (Record("signal", state.generation, reason, say=True), stop), reason)


@_on(ev.SignalReceived, Phase.LEAVING)
def _signalled_while_leaving(state: State, event: ev.SignalReceived, now: float, judge: Judge) -> Decision:
    from ftlaunch.launcher.exit_codes import signal_name

    code = state.ending.exit_code if state.ending is not None and state.ending.exit_code is not None else 1
    reason = f"received {signal_name(event.signum)} while leaving"
    return Decision(replace(state, phase=Phase.DONE), (Exit(code, reason),), reason)


@_on(ev.SignalReceived, Phase.DONE)
def _signalled_late(state: State, event: ev.SignalReceived, now: float, judge: Judge) -> Decision:
    return _ignore(state, "ending already")


# --- clearing away and going on ---------------------------------------------------------------------------------------


@_on(ev.WorkersGone, Phase.STOPPING)
def _workers_gone(state: State, event: ev.WorkersGone, now: float, judge: Judge) -> Decision:
    record = Record("workers_stopped", event.generation)
    if state.ending is not None:
        state, actions = finish_stop(state)
        return Decision(state, (record, *actions), "no worker is left")
    if state.recovery is None:
        raise InvalidTransition("workers are gone, but neither a recovery nor an ending was decided")
    state = replace(state, phase=Phase.RECLAIMING, recovery=replace(state.recovery, stopped=True))
    return Decision(state, (record, Reclaim(event.generation)), "no worker is left")


@_on(ev.WorkersUnkillable, Phase.STOPPING)
def _unkillable(state: State, event: ev.WorkersUnkillable, now: float, judge: Judge) -> Decision:
    ending = Ending(Outcome.LEFT, ExitCode.UNHEALTHY, event.reason)
    record = Record("workers_unkillable", event.generation, event.reason, say=True)
    leave = Leave(state.generation, ending.outcome, ExitCode.UNHEALTHY, event.reason)
    state = replace(state, phase=Phase.LEAVING, ending=ending, recovery=None)
    return Decision(state, (record, leave), event.reason)


@_on(ev.Reclaimed, Phase.RECLAIMING)
def _reclaimed(state: State, event: ev.Reclaimed, now: float, judge: Judge) -> Decision:
    if state.recovery is None:
        raise InvalidTransition("GPUs reclaimed without a recovery under way")
    recovery = replace(state.recovery, reclaimed=True)
    state, actions = start_if_ready(replace(state, phase=Phase.JOINING, recovery=recovery), now)
    return Decision(state, (Record("gpu_reclaimed", event.generation), *actions), "the GPUs are free")


@_on(ev.NodeUnhealthy, Phase.JOINING, *_ALIVE, *_CLEARING)
def _unhealthy(state: State, event: ev.NodeUnhealthy, now: float, judge: Judge) -> Decision:
    return _end(state, Ending(Outcome.LEFT, ExitCode.UNHEALTHY, event.reason), Manner.FAILED)


@_on(ev.BackoffOver, *_EVERYWHERE)
def _backoff_over(state: State, event: ev.BackoffOver, now: float, judge: Judge) -> Decision:
    if state.recovery is None:
        return _ignore(state, "no restart is waiting")
    state, actions = start_if_ready(replace(state, recovery=replace(state.recovery, delayed=False)), now)
    return Decision(state, actions, "the back-off is over")


@_on(ev.Left, Phase.LEAVING)
def _left(state: State, event: ev.Left, now: float, judge: Judge) -> Decision:
    reason = event.reason or (state.ending.reason if state.ending is not None else "")
    record = Record("job_finished", state.generation, reason, fields={"exit_code": event.exit_code})
    return Decision(replace(state, phase=Phase.DONE), (record, Exit(event.exit_code, reason)), reason)


@_on(ev.WorkersGone, Phase.RECLAIMING, Phase.LEAVING, Phase.DONE)
@_on(ev.WorkersUnkillable, Phase.LEAVING, Phase.DONE)
@_on(ev.WorkerExited, Phase.JOINING, Phase.LEAVING, Phase.DONE)
@_on(ev.WorkerFailing, Phase.JOINING, Phase.LEAVING, Phase.DONE)
@_on(ev.WorkerStalled, Phase.JOINING, Phase.LEAVING, Phase.DONE)
@_on(ev.Reclaimed, Phase.LEAVING, Phase.DONE)
@_on(ev.NodeUnhealthy, Phase.LEAVING, Phase.DONE)
@_on(ev.Left, *(phase for phase in Phase if phase is not Phase.LEAVING))
def _late(state: State, event: ev.Event, now: float, judge: Judge) -> Decision:
    return _ignore(state, f"{type(event).__name__} is too late to matter")


# --- ending -----------------------------------------------------------------------------------------------------------


def _end(state: State, ending: Ending, manner: Manner, signum: int = 15) -> Decision:
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


__all__ = ["Conclude", "Decision", "WakeAt", "decide"]
