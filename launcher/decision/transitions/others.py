"""The other nodes, and whoever asks the agent for something."""

from __future__ import annotations

from dataclasses import replace

from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import Action, Exit, Manner, Record, StopWorkers
from ftlaunch.launcher.decision.recover import fail, forgo, is_agreed
from ftlaunch.launcher.decision.state import Ending, Judge, Origin, Phase, State
from ftlaunch.launcher.decision.table import ALIVE, CLEARING, EVERYWHERE, Decision, decided, end, ignore, on
from ftlaunch.launcher.exit_codes import ExitCode, signal_name
from ftlaunch.rendezvous import interface as rdzv
from ftlaunch.rendezvous.interface import Outcome


@on(rdzv.PeerFailed, Phase.JOINING, *ALIVE, *CLEARING, Phase.LEAVING)
def _peer_failed(state: State, event: rdzv.PeerFailed, now: float, judge: Judge) -> Decision:
    reason = f"node {event.node_id} failed: {event.reason}"
    if is_agreed(state, event.generation):
        return decided(forgo(state, event.generation, reason), reason)
    # Also in the moment between the end of our ranks and our waiting for the others.
    if state.phase not in ALIVE and not _waits_for_peers(state):
        return ignore(state, f"makes no difference while {state.phase.value}")
    failure = ev.Failure(ev.FailureKind.PEER, event.generation, now, reason, progress=state.progress)
    return decided(fail(replace(state, ending=None), failure, now, judge), reason)


def _waits_for_peers(state: State) -> bool:
    return state.ending is not None and state.ending.outcome is Outcome.FINISHED


@on(rdzv.MembershipChanged, Phase.JOINING, *ALIVE, *CLEARING)
def _membership_changed(state: State, event: rdzv.MembershipChanged, now: float, judge: Judge) -> Decision:
    agreed = is_agreed(state, event.generation)
    if state.phase not in ALIVE and not agreed:
        return ignore(state, f"makes no difference while {state.phase.value}")
    # Somebody who asks for a new generation gets it; a node that only waits is taken in when the user wants it.
    wanted = event.waiting == 0 or state.grow == "immediately"
    if not wanted:
        record = Record("nodes_waiting", event.generation, event.reason, fields={"waiting": event.waiting})
        later = state.grow == "at-checkpoint"
        return Decision(replace(state, growth=event.reason if later else ""), (record,), f"not now: {event.reason}")
    if agreed:
        return decided(forgo(state, event.generation, event.reason), event.reason)
    failure = ev.Failure(ev.FailureKind.MEMBERSHIP, event.generation, now, event.reason, progress=state.progress)
    return decided(fail(state, failure, now, judge), event.reason)


@on(ev.CheckpointSaved, *EVERYWHERE)
def _checkpoint_saved(state: State, event: ev.CheckpointSaved, now: float, judge: Judge) -> Decision:
    if state.phase not in ALIVE or not state.growth:
        return ignore(state, "nobody waits for a checkpoint")
    reason = f"a checkpoint is complete, and {state.growth}"
    failure = ev.Failure(ev.FailureKind.MEMBERSHIP, event.generation, now, reason)
    return decided(fail(replace(state, growth=""), failure, now, judge), reason)


@on(ev.ProgressNoted, *EVERYWHERE)
def _progress_noted(state: State, event: ev.ProgressNoted, now: float, judge: Judge) -> Decision:
    return Decision(replace(state, progress=event.progress), (), "how far this node's ranks came")


@on(rdzv.LeaseLost, *ALIVE)
def _lease_lost(state: State, event: rdzv.LeaseLost, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(ev.FailureKind.LEASE, event.generation, now, event.reason, progress=state.progress)
    return decided(fail(state, failure, now, judge), event.reason)


@on(rdzv.LeaseLost, Phase.JOINING, *CLEARING)
def _lease_lost_while_stopping(state: State, event: rdzv.LeaseLost, now: float, judge: Judge) -> Decision:
    actions: tuple[Action, ...] = ()
    if is_agreed(state, event.generation):
        state, actions = forgo(state, event.generation, event.reason)
    if state.phase is Phase.STOPPING and state.manner is not Manner.NOW:
        # Fencing leaves no time for anybody's grace.
        actions = (StopWorkers(state.generation, Manner.NOW, event.reason), *actions)
        state = replace(state, manner=Manner.NOW)
    return Decision(state, actions, event.reason) if actions else ignore(state, "no worker is running")


@on(rdzv.Closed, Phase.JOINING, *ALIVE, *CLEARING)
def _closed(state: State, event: rdzv.Closed, now: float, judge: Judge) -> Decision:
    # Who stops a job in order lets its ranks save, on every node.
    polite, ending = event.exit_code == ExitCode.TERMINATED, state.ending
    if polite and ending is not None and ending.of_the_job and ending.exit_code == event.exit_code:
        return ignore(state, "closed as was asked for here")
    manner = Manner.POLITE if polite else Manner.NOW
    return end(state, Ending(Outcome.LEFT, event.exit_code, event.reason, origin=Origin.CLOSED), manner)


@on(rdzv.Closed, Phase.LEAVING, Phase.DONE)
def _closed_late(state: State, event: rdzv.Closed, now: float, judge: Judge) -> Decision:
    return ignore(state, "leaving already")


@on(rdzv.Excluded, Phase.JOINING, *ALIVE, *CLEARING)
def _excluded(state: State, event: rdzv.Excluded, now: float, judge: Judge) -> Decision:
    if state.ending is not None:
        return ignore(state, "this node is about to leave anyway")
    return end(state, Ending(Outcome.LEFT, ExitCode.UNHEALTHY, event.reason), Manner.FAILED)


@on(rdzv.Excluded, Phase.LEAVING, Phase.DONE)
def _excluded_late(state: State, event: rdzv.Excluded, now: float, judge: Judge) -> Decision:
    return ignore(state, "leaving already")


@on(ev.RestartRequested, *ALIVE)
def _restart_requested(state: State, event: ev.RestartRequested, now: float, judge: Judge) -> Decision:
    failure = ev.Failure(
        ev.FailureKind.REQUEST, event.generation, now, event.reason, event.local_rank, progress=event.progress
    )
    return decided(fail(state, failure, now, judge), event.reason)


@on(ev.StopRequested, Phase.JOINING, *ALIVE, *CLEARING)
def _stop_requested(state: State, event: ev.StopRequested, now: float, judge: Judge) -> Decision:
    by_script = event.local_rank is not None
    code = ExitCode.NO_PROGRESS if by_script else ExitCode.TERMINATED
    closes = by_script or event.everywhere
    first = state.ending
    if first is not None and first.outcome is not Outcome.FINISHED and (first.of_the_job or not closes):
        # The first ending counts, and for good: no other cause of the failure turns it any more.
        kept = replace(first, origin=Origin.HERE) if first.origin is Origin.JUDGED else first
        return Decision(replace(state, ending=kept), (), "ending already")
    ending = Ending(Outcome.FAILED if closes else Outcome.LEFT, code, event.reason, None if closes else 0)
    return end(state, ending, Manner.POLITE)


@on(ev.StopRequested, Phase.LEAVING, Phase.DONE)
def _stop_requested_late(state: State, event: ev.StopRequested, now: float, judge: Judge) -> Decision:
    return ignore(state, "ending already")


@on(ev.SignalReceived, Phase.JOINING, *ALIVE, *CLEARING)
def _signalled(state: State, event: ev.SignalReceived, now: float, judge: Judge) -> Decision:
    again = state.signals > 0
    reason = f"received {signal_name(event.signum)}" + (" again" if again else "")
    if again:
        return _second_signal(state, event, reason)
    # Ranks that saved and left with 0 because of a preemption have not finished the job.
    clean = None if event.signum in state.preempt_signals else 0
    ending = Ending(Outcome.LEFT, 128 + event.signum, reason, clean_exit_code=clean)
    return end(replace(state, signals=1), ending, Manner.POLITE, event.signum)


def _second_signal(state: State, event: ev.SignalReceived, reason: str) -> Decision:
    # Only SIGINT has impatient senders; a second SIGTERM comes from supervisors that signal a whole group.
    if event.signum != 2 or state.phase is not Phase.STOPPING:
        return ignore(state, reason)
    stop = StopWorkers(state.generation, Manner.NOW, reason)
    state = replace(state, signals=state.signals + 1, manner=Manner.NOW)
    return Decision(state, (Record("signal", state.generation, reason, say=True), stop), reason)


@on(ev.SignalReceived, Phase.LEAVING)
def _signalled_while_leaving(state: State, event: ev.SignalReceived, now: float, judge: Judge) -> Decision:
    code = state.ending.exit_code if state.ending is not None and state.ending.exit_code is not None else 1
    reason = f"received {signal_name(event.signum)} while leaving"
    return Decision(replace(state, phase=Phase.DONE), (Exit(code, reason),), reason)


@on(ev.SignalReceived, Phase.DONE)
def _signalled_late(state: State, event: ev.SignalReceived, now: float, judge: Judge) -> Decision:
    return ignore(state, "ending already")
