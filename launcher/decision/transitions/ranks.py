"""A rank of this node ends, stalls or cannot be started."""

from __future__ import annotations

from dataclasses import replace

from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import Manner, Record
from ftlaunch.launcher.decision.recover import fail, reattribute
from ftlaunch.launcher.decision.state import Ending, Judge, State, WorkerState, WorkerStatus
from ftlaunch.launcher.decision.table import ALIVE, CLEARING, Decision, decided, end, ignore, on
from ftlaunch.launcher.exit_codes import ExitCode, signal_name
from ftlaunch.rendezvous.interface import Outcome


@on(ev.WorkerFailing, *ALIVE)
def _worker_failing(state: State, event: ev.WorkerFailing, now: float, judge: Judge) -> Decision:
    worker = state.workers[event.local_rank]
    if worker.status is not WorkerStatus.RUNNING:
        return ignore(state, "said its last words before")
    words = event.words
    state = state.with_worker(replace(worker, status=WorkerStatus.FAILING, words=words))
    kind = ev.FailureKind.EXCEPTION if words.exception else ev.FailureKind.EXIT
    reason = f"{words.exception}: {words.message}" if words.exception else f"is exiting with code {words.exit_code}"
    failure = ev.Failure(
        kind, state.generation, now, reason, event.local_rank, words.exit_code, words, progress=event.progress
    )
    return decided(fail(state, failure, now, judge), reason)


@on(ev.WorkerFailing, *CLEARING)
def _words_while_stopping(state: State, event: ev.WorkerFailing, now: float, judge: Judge) -> Decision:
    worker = replace(state.workers[event.local_rank], words=event.words)
    return Decision(state.with_worker(worker), (), "heard while stopping")


@on(ev.WorkerExited, *ALIVE)
def _worker_exited(state: State, event: ev.WorkerExited, now: float, judge: Judge) -> Decision:
    state, record = _note_exit(state, event)
    if event.exit_code != 0:
        failure = failure_of_exit(state, event)
        state, actions = fail(state, failure, now, judge)
        return Decision(state, (record, *actions), failure.reason)
    if not state.all_exited:
        return Decision(state, (record,), f"local rank {event.local_rank} has finished")
    ending = Ending(Outcome.FINISHED, ExitCode.SUCCESS, "all ranks succeeded")
    decision = end(state, ending, Manner.SWEEP)
    return replace(decision, actions=(record, *decision.actions))


@on(ev.WorkerExited, *CLEARING)
def _exited_while_stopping(state: State, event: ev.WorkerExited, now: float, judge: Judge) -> Decision:
    state, record = _note_exit(state, event)
    failure = state.failure
    if failure is not None and failure.local_rank == event.local_rank and failure.words is not None:
        # Known only now. A rank that had to be killed while it ended has the code that it announced.
        code = event.exit_code if event.exit_code >= 0 else failure.words.exit_code
        state = replace(state, failure=replace(failure, exit_code=code))
    if failure is not None and is_true_cause(failure, event):
        state, actions = reattribute(state, failure_of_exit(state, event), now, judge)
        return Decision(state, (record, *actions), f"local rank {event.local_rank} died before, of its own")
    return Decision(state, (record,), f"local rank {event.local_rank} is gone")


def is_true_cause(failure: ev.Failure, event: ev.WorkerExited) -> bool:
    """A rank that was killed gives its memory back before its death is known; its peers' exceptions may come first."""
    victim = failure.kind in (ev.FailureKind.EXCEPTION, ev.FailureKind.EXIT) and failure.local_rank != event.local_rank
    return victim and event.own and event.exit_code < 0


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


def failure_of_exit(state: State, event: ev.WorkerExited) -> ev.Failure:
    """What a death that was not wanted means."""
    words = state.workers[event.local_rank].words
    if event.exit_code < 0:
        kind, reason = ev.FailureKind.SIGNAL, f"was killed by {signal_name(-event.exit_code)}"
    else:
        kind, reason = ev.FailureKind.EXIT, f"exited with code {event.exit_code}"
    return ev.Failure(
        kind, event.generation, event.at, reason, event.local_rank, event.exit_code, words, progress=event.progress
    )


@on(ev.WorkerStalled, *ALIVE)
def _worker_stalled(state: State, event: ev.WorkerStalled, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(
        ev.FailureKind.STALL,
        event.generation,
        now,
        event.reason,
        event.local_rank,
        exit_code=-9,
        progress=event.progress,
    )
    return decided(fail(state, failure, now, judge), event.reason)


@on(ev.SpawnFailed, *ALIVE)
def _spawn_failed(state: State, event: ev.SpawnFailed, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(
        ev.FailureKind.SPAWN, event.generation, now, event.reason, event.local_rank, exit_code=ExitCode.USAGE
    )
    return decided(fail(state.with_pids(event.pids), failure, now, judge), event.reason)
