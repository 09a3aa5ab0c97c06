"""The decision table: (state, event) -> new phase and actions, without any process."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.launcher.agent import Agent
from ftlaunch.launcher.decision import actions as do
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import Manner
from ftlaunch.launcher.decision.decide import decide
from ftlaunch.launcher.decision.policy import GenerationRecord, Verdict
from ftlaunch.launcher.decision.recover import SAVED, most_saved
from ftlaunch.launcher.decision.state import Ending, Phase, Recovery, State
from ftlaunch.launcher.decision.table import Decision
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.rendezvous import interface as rdzv
from ftlaunch.rendezvous.interface import Outcome, World, WorldAgreed

SLOTS = 2


def always(history: tuple[GenerationRecord, ...], now: float) -> Verdict:
    return Verdict(True, "go on")


def never(history: tuple[GenerationRecord, ...], now: float) -> Verdict:
    return Verdict(False, "used up")


def later(history: tuple[GenerationRecord, ...], now: float) -> Verdict:
    return Verdict(True, "slowly", delay_s=4.0)


def world(generation: int) -> World:
    member = rdzv.Member("a", "localhost", 0, SLOTS)
    return World(generation, (member,), 0, 0, SLOTS, "localhost", 1000 + generation, 0, "run")


def tell(state: State, *events: ev.Event, judge: Any = always, now: float = 0.0) -> Decision:
    """Decide on several events; the actions of all of them are returned together."""
    actions: tuple[do.Action, ...] = ()
    reason = ""
    for event in events:
        decision = decide(state, event, now, judge)
        state, reason = decision.state, decision.reason
        actions += decision.actions
    return Decision(state, actions, reason)


def the(kind: type, decision: Decision) -> Any:
    """The only action of this kind."""
    found = [action for action in decision.actions if isinstance(action, kind)]
    assert len(found) == 1, (kind, decision.actions)
    return found[0]


def none(kind: type, decision: Decision) -> bool:
    return not any(isinstance(action, kind) for action in decision.actions)


def running(generation: int = 0) -> State:
    state = tell(State(slots=SLOTS), ev.Started(), WorldAgreed(world(generation))).state
    return tell(state, ev.WorkersStarted(generation, (11, 12))).state


def exited(local_rank: int, code: int, generation: int = 0, own: bool = True) -> ev.WorkerExited:
    return ev.WorkerExited(generation, local_rank, code, 1.0, own=own)


def stopped(local_rank: int, code: int = -9) -> ev.WorkerExited:
    return exited(local_rank, code, own=False)


WORDS = LastWords("ValueError", "bad", "Traceback…", "train.py:3", step=7)


def test_start_joins_and_starts_the_agreed_world() -> None:
    decision = tell(State(slots=SLOTS), ev.Started())
    assert the(do.Join, decision).joining == rdzv.Joining(0, SLOTS, counted=False)
    decision = tell(decision.state, WorldAgreed(world(0)))
    assert the(do.StartWorkers, decision).world == world(0)
    assert decision.state.phase is Phase.STARTING
    assert tell(decision.state, ev.WorkersStarted(0, (11, 12))).state.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (exited(1, -9), ev.FailureKind.SIGNAL),
        (exited(1, 3), ev.FailureKind.EXIT),
        (ev.WorkerFailing(0, 1, WORDS), ev.FailureKind.EXCEPTION),
        (ev.WorkerFailing(0, 1, replace(WORDS, type="SystemExit")), ev.FailureKind.EXIT),
        (ev.WorkerStalled(0, 1, "silent", "rank 1 is silent"), ev.FailureKind.STALL),
        (ev.RestartRequested(0, "asked to"), ev.FailureKind.REQUEST),
        (rdzv.PeerFailed(0, "b", "rank 3 died"), ev.FailureKind.PEER),
        (rdzv.MembershipChanged(0, 1, "b waits"), ev.FailureKind.MEMBERSHIP),
        (rdzv.LeaseLost(0, "no renewal"), ev.FailureKind.LEASE),
    ],
)
def test_what_ends_a_generation_stops_the_ranks_and_joins_the_next_at_once(
    event: ev.Event, kind: ev.FailureKind
) -> None:
    decision = tell(running(), event)
    assert decision.state.phase is Phase.STOPPING
    assert decision.state.failure is not None and decision.state.failure.kind is kind
    stop = the(do.StopWorkers, decision)
    assert stop.manner is (Manner.NOW if kind is ev.FailureKind.LEASE else Manner.FAILED)
    assert stop.evidence is (kind is ev.FailureKind.STALL)
    assert the(do.Join, decision).joining.generation == 1
    assert the(do.Conclude, decision).restart
    assert none(do.Announce, decision) is not decision.state.failure.own
    assert none(do.StartWorkers, decision)


def test_next_generation_starts_when_stopped_and_reclaimed_and_agreed_in_any_order() -> None:
    arrivals: list[ev.Event] = [ev.WorkersGone(0), ev.Reclaimed(0), WorldAgreed(world(1))]
    for order in ([0, 1, 2], [0, 2, 1], [2, 0, 1]):
        decision = tell(tell(running(), exited(0, -9)).state, *(arrivals[i] for i in order))
        assert the(do.StartWorkers, decision).world == world(1)
        assert isinstance(decision.actions[-1], do.StartWorkers)
        assert decision.state.generation == 1 and decision.state.failure is None


def test_next_generation_waits_for_its_back_off() -> None:
    decision = tell(running(), exited(0, -9), judge=later, now=10.0)
    assert the(do.WakeAt, decision).at == 14.0
    early = tell(decision.state, ev.WorkersGone(0), ev.Reclaimed(0), WorldAgreed(world(1)), now=11.0)
    assert none(do.StartWorkers, early)
    assert the(do.StartWorkers, tell(early.state, ev.BackoffOver(0), now=14.0)).world == world(1)


def test_success_needs_all_ranks_and_sweeps_what_they_left() -> None:
    decision = tell(running(), exited(0, 0))
    assert decision.state.phase is Phase.RUNNING
    decision = tell(decision.state, exited(1, 0))
    assert the(do.StopWorkers, decision).manner is Manner.SWEEP
    decision = tell(decision.state, ev.WorkersGone(0))
    assert the(do.Leave, decision) == do.Leave(0, Outcome.FINISHED, 0, "all ranks succeeded")
    assert the(do.Exit, tell(decision.state, ev.Left(0))).exit_code == 0


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (75, 75), (-9, 137), (-39, 167), (255, 255)])
def test_job_ends_with_the_first_failed_ranks_own_code(code: int, expected: int) -> None:
    decision = tell(running(), exited(1, code), stopped(0), ev.WorkersGone(0), judge=never)
    assert the(do.Leave, decision).exit_code == expected
    assert the(do.Leave, decision).outcome is Outcome.FAILED


def test_code_of_a_rank_that_said_its_last_words_is_the_one_it_dies_with() -> None:
    decision = tell(running(), ev.WorkerFailing(0, 1, WORDS), exited(1, 44), ev.WorkersGone(0), judge=never)
    assert the(do.Leave, decision).exit_code == 44


def test_failure_after_another_one_is_a_consequence() -> None:
    decision = tell(running(), exited(1, -9), exited(0, 1))
    assert decision.state.failure is not None and decision.state.failure.local_rank == 1
    assert len([a for a in decision.actions if isinstance(a, do.StopWorkers)]) == 1


def test_death_that_is_reported_after_its_victims_exception_is_the_cause_all_the_same() -> None:
    decision = tell(running(), ev.WorkerFailing(0, 0, WORDS), exited(1, -9), stopped(0))
    assert decision.state.failure is not None and decision.state.failure.local_rank == 1
    first, second = (action for action in decision.actions if isinstance(action, do.Conclude))
    assert (first.failure.local_rank, second.failure.local_rank) == (0, 1)
    assert len(decision.state.history) == 1 and decision.state.history[0].kind == "signal"
    assert len([a for a in decision.actions if isinstance(a, do.Join)]) == 1


@pytest.mark.parametrize("own", [True, False])
def test_corrected_cause_may_turn_an_end_into_a_restart(own: bool) -> None:
    def judge(history: tuple[GenerationRecord, ...], now: float) -> Verdict:
        return Verdict(history[-1].kind == "signal", "by kind")

    decision = tell(running(), ev.WorkerFailing(0, 0, WORDS), exited(1, -9, own=own), judge=judge)
    assert none(do.Join, decision) is not own
    assert (decision.state.recovery is not None) is own and (decision.state.ending is None) is own


@pytest.mark.parametrize(("signum", "code"), [(15, 143), (2, 130), (1, 129)])
def test_signal_is_passed_on_and_the_job_leaves_without_closing(signum: int, code: int) -> None:
    decision = tell(running(), ev.SignalReceived(signum))
    stop = the(do.StopWorkers, decision)
    assert stop.manner is Manner.POLITE and stop.signum == signum
    decision = tell(decision.state, stopped(0, -signum), exited(1, 0), ev.WorkersGone(0))
    assert the(do.Leave, decision) == do.Leave(0, Outcome.LEFT, code, the(do.Leave, decision).reason)


def test_signal_ends_with_0_when_all_ranks_end_by_themselves_with_0() -> None:
    decision = tell(running(), ev.SignalReceived(15), exited(0, 0), exited(1, 0), ev.WorkersGone(0))
    assert the(do.Leave, decision).exit_code == 0


def test_second_interrupt_kills_and_a_second_sigterm_does_not() -> None:
    state = tell(running(), ev.SignalReceived(2)).state
    assert none(do.StopWorkers, tell(state, ev.SignalReceived(15)))
    assert the(do.StopWorkers, tell(state, ev.SignalReceived(2))).manner is Manner.NOW


def test_signal_while_waiting_for_peers_leaves_at_once() -> None:
    decision = tell(tell(State(slots=SLOTS), ev.Started()).state, ev.SignalReceived(2))
    assert the(do.Leave, decision).exit_code == 130 and decision.state.phase is Phase.LEAVING


def test_signal_during_recovery_starts_nothing_any_more() -> None:
    state = tell(running(), exited(0, -9), ev.SignalReceived(15)).state
    decision = tell(state, WorldAgreed(world(1)), ev.WorkersGone(0))
    assert none(do.StartWorkers, decision) and the(do.Leave, decision).exit_code == 143


def test_unkillable_worker_ends_the_agent_with_75_and_leaves_the_job_open() -> None:
    state = tell(running(), exited(0, -9)).state
    decision = tell(state, WorldAgreed(world(1)), ev.WorkersUnkillable(0, "pid 12 (python, state D)"))
    assert the(do.Leave, decision).exit_code == ExitCode.UNHEALTHY
    assert the(do.Leave, decision).outcome is Outcome.LEFT
    assert none(do.StartWorkers, tell(decision.state, ev.WorkersGone(0), ev.Reclaimed(0)))


def test_gpu_that_does_not_come_back_ends_the_agent_with_75() -> None:
    state = tell(running(), exited(0, -9), ev.WorkersGone(0)).state
    assert the(do.Leave, tell(state, ev.NodeUnhealthy(0, "GPU 0 is held"))).exit_code == ExitCode.UNHEALTHY


def test_peer_that_fails_while_we_wait_at_the_end_brings_our_ranks_back() -> None:
    state = tell(running(), exited(0, 0), exited(1, 0), ev.WorkersGone(0)).state
    assert state.phase is Phase.LEAVING
    decision = tell(state, rdzv.PeerFailed(0, "b", "died"), ev.WorkersGone(0), ev.Reclaimed(0), WorldAgreed(world(1)))
    assert the(do.StartWorkers, decision).world == world(1)


def test_peer_that_fails_while_our_finished_ranks_are_swept_brings_them_back() -> None:
    state = tell(running(), exited(0, 0), exited(1, 0)).state
    assert state.phase is Phase.STOPPING
    decision = tell(state, rdzv.PeerFailed(0, "b", "died"), ev.WorkersGone(0), ev.Reclaimed(0), WorldAgreed(world(1)))
    assert none(do.Leave, decision)
    assert the(do.StartWorkers, decision).world == world(1)


CLEARED = (ev.WorkersGone(0), ev.Reclaimed(0), ev.BackoffOver(0))


@pytest.mark.parametrize("cleared", [0, 1, 2], ids=["stopping", "reclaiming", "back-off"])
@pytest.mark.parametrize(
    "over",
    [
        rdzv.PeerFailed(1, "b", "died"),
        rdzv.LeaseLost(1, "cut off"),
        rdzv.MembershipChanged(1, 0, "b asks"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_generation_that_is_over_before_it_began_here_is_never_started(cleared: int, over: ev.Event) -> None:
    state = tell(running(), exited(0, -9), *CLEARED[:cleared], WorldAgreed(world(1)), judge=later).state
    assert state.phase is (Phase.STOPPING, Phase.RECLAIMING, Phase.JOINING)[cleared]
    decision = tell(state, over)
    assert the(do.Join, decision).joining.generation == 2
    assert none(do.Announce, decision), "that it failed is known"
    decision = tell(decision.state, *CLEARED[cleared:], WorldAgreed(world(2)), now=9.0)
    assert the(do.StartWorkers, decision).world == world(2)


def test_waiting_node_is_remembered_also_when_it_is_told_of_before_the_start() -> None:
    state = replace(tell(running(), exited(0, -9), WorldAgreed(world(1))).state, grow="at-checkpoint")
    decision = tell(state, rdzv.MembershipChanged(1, 1, "c waits"), ev.WorkersGone(0), ev.Reclaimed(0))
    assert the(do.StartWorkers, decision).world == world(1)
    assert (
        the(do.Join, tell(decision.state, ev.WorkersStarted(1, (1, 2)), ev.CheckpointSaved(1))).joining.generation == 2
    )


def test_closed_job_ends_with_the_code_it_was_closed_with() -> None:
    decision = tell(running(), rdzv.Closed(76, "no progress"), ev.WorkersGone(0))
    assert the(do.StopWorkers, decision).manner is Manner.NOW
    assert the(do.Leave, decision).exit_code == 76


def test_job_that_was_stopped_elsewhere_lets_the_ranks_here_save() -> None:
    decision = tell(running(), rdzv.Closed(143, "stopped with ftctl"), ev.WorkersGone(0))
    assert the(do.StopWorkers, decision).manner is Manner.POLITE
    assert the(do.Leave, decision).exit_code == 143


@pytest.mark.parametrize(("everywhere", "outcome"), [(True, Outcome.FAILED), (False, Outcome.LEFT)])
def test_stop_closes_the_job_only_where_all_nodes_are_meant(everywhere: bool, outcome: Outcome) -> None:
    decision = tell(running(), ev.StopRequested(0, "enough", everywhere=everywhere), ev.WorkersGone(0))
    leave = the(do.Leave, decision)
    assert (leave.outcome, leave.exit_code) == (outcome, 143)


STOP_HERE = ev.StopRequested(0, "here", everywhere=True)
STOP_THERE = ev.StopRequested(0, "there", everywhere=True)
PART = ev.StopRequested(0, "this node")


@pytest.mark.parametrize(
    ("first", "second", "reason", "outcome"),
    [
        (STOP_HERE, STOP_THERE, "here", Outcome.FAILED),
        (STOP_HERE, rdzv.Closed(143, "there"), "here", Outcome.FAILED),
        (rdzv.Closed(143, "there"), STOP_HERE, "there", Outcome.LEFT),
        (rdzv.Closed(76, "no progress"), STOP_HERE, "no progress", Outcome.LEFT),
        (STOP_HERE, PART, "here", Outcome.FAILED),
        (ev.SignalReceived(15), PART, "received SIGTERM", Outcome.LEFT),
        # These are more than what was first.
        (PART, STOP_HERE, "here", Outcome.FAILED),
        (ev.SignalReceived(15), STOP_HERE, "here", Outcome.FAILED),
        (STOP_HERE, rdzv.Closed(76, "no progress"), "no progress", Outcome.LEFT),
    ],
)
def test_first_ending_counts_and_is_said_once(first: ev.Event, second: ev.Event, reason: str, outcome: Outcome) -> None:
    begun = tell(running(), first)
    decision = tell(begun.state, second)
    leave = the(do.Leave, tell(decision.state, ev.WorkersGone(0)))
    assert (leave.reason, leave.outcome) == (reason, outcome)
    assert none(do.Record, decision) is (begun.state.ending is not None and begun.state.ending.reason == reason)


def test_second_sigint_hurries_a_stop_that_was_asked_for() -> None:
    decision = tell(running(), ev.SignalReceived(2), PART, ev.SignalReceived(2))
    assert decision.state.manner is Manner.NOW


@pytest.mark.parametrize(("before", "after"), [(always, always), (never, always)])
def test_job_that_was_stopped_does_not_go_on_because_of_another_cause(before: Any, after: Any) -> None:
    failing = tell(running(), ev.WorkerFailing(0, 1, WORDS), judge=before)
    decision = tell(failing.state, STOP_HERE, exited(0, -9), ev.WorkersGone(0), judge=after)
    assert the(do.Leave, decision).outcome is Outcome.FAILED and none(do.Join, decision)


def test_excluded_node_stops_its_ranks_as_after_a_failure_and_leaves_the_job_open() -> None:
    decision = tell(running(), rdzv.Excluded("left out: hot"), ev.WorkersGone(0))
    assert the(do.StopWorkers, decision).manner is Manner.FAILED
    leave = the(do.Leave, decision)
    assert (leave.outcome, leave.exit_code, leave.reason) == (Outcome.LEFT, ExitCode.UNHEALTHY, "left out: hot")
    waiting = tell(tell(State(slots=SLOTS), ev.Started()).state, rdzv.Excluded("left out"))
    assert the(do.Leave, waiting).exit_code == ExitCode.UNHEALTHY


def test_exclusion_changes_nothing_for_an_agent_that_ends_anyway() -> None:
    ending = tell(running(), ev.SignalReceived(15)).state
    assert tell(ending, rdzv.Excluded("left out")).state is ending


def test_job_that_cannot_be_agreed_on_ends_with_69() -> None:
    decision = tell(tell(State(slots=SLOTS), ev.Started()).state, rdzv.JoinFailed(0, "no answer"))
    assert the(do.Leave, decision).exit_code == ExitCode.RENDEZVOUS


@pytest.mark.parametrize("grow", ["immediately", "at-checkpoint", "never"])
def test_waiting_node_is_taken_in_when_the_user_wants_it(grow: str) -> None:
    waiting = rdzv.MembershipChanged(0, 1, "b waits")
    decision = tell(replace(running(), grow=grow), waiting)
    assert none(do.Join, decision) is (grow != "immediately")
    if grow != "immediately":
        decision = tell(decision.state, ev.CheckpointSaved(0))
        assert none(do.Join, decision) is (grow == "never")


def test_checkpoint_alone_changes_nothing_and_a_node_that_asks_is_heard_whatever_the_policy() -> None:
    assert tell(running(), ev.CheckpointSaved(0)).actions == ()
    asks = rdzv.MembershipChanged(0, 0, "b asks")
    assert the(do.Join, tell(replace(running(), grow="never"), asks)).joining.generation == 1


@pytest.mark.parametrize("event", [exited(0, -9), ev.WorkerStalled(0, 0, "silent", "x"), ev.WorkersGone(0)])
def test_events_of_an_older_generation_are_dropped(event: ev.Event) -> None:
    state = running(1)
    assert decide(state, event, 0.0, always) == Decision(state, (), f"{type(event).__name__} of generation 0 is stale")


@pytest.mark.parametrize("odd", [None, "76", 76.0, True, -1, 10**30, [], {}])
def test_what_a_leader_publishes_is_used_as_far_as_it_makes_sense(odd: Any) -> None:
    state = tell(State(slots=SLOTS), ev.Started()).state
    refused = replace(world(0), shared={"refused": odd, "refused_code": odd})
    assert the(do.Leave, tell(state, WorldAgreed(refused))).exit_code == ExitCode.NO_PROGRESS
    resumed = replace(world(0), shared={"resume_step": odd, "resume_paths": odd, "resume_from": odd})
    failed = tell(state, WorldAgreed(resumed), ev.WorkersStarted(0, (1, 2)), exited(0, -9)).state
    assert failed.history[0].resume_step in (None, 10**30, -1)


def test_ending_is_kept_when_the_job_is_left() -> None:
    state = replace(running(), ending=Ending(Outcome.FAILED, None, "x"), phase=Phase.STOPPING)
    assert the(do.Leave, tell(state, ev.WorkersGone(0))).exit_code == 1


def test_a_spare_warms_its_standbys_by_what_others_teach_and_a_node_at_work_does_not() -> None:
    lesson = rdzv.Lesson(("torch",), {"OMP_NUM_THREADS": "1"})
    joining = tell(State(slots=SLOTS), ev.Started()).state
    assert the(do.WarmUp, tell(joining, lesson)).lesson == lesson
    assert none(do.WarmUp, tell(running(), lesson))


@pytest.mark.parametrize(("group_rank", "taught"), [(0, [rdzv.Lesson(("torch",), {"A": "1"})]), (1, [])])
def test_one_node_teaches_the_spares_though_no_secrets(group_rank: int, taught: list[rdzv.Lesson]) -> None:
    heard: list[rdzv.Lesson] = []
    rendezvous: Any = SimpleNamespace(teach=heard.append)
    narrator: Any = None
    state = replace(running(), world=replace(world(0), group_rank=group_rank))
    agent = Agent(state, always, rendezvous, narrator)
    agent.teach(rdzv.Lesson(("torch",), {"A": "1", "HF_TOKEN": "hush"}))
    assert heard == taught


def test_a_rank_that_the_guardian_ended_is_the_lost_leases_and_not_the_nodes_own_failure() -> None:
    """Of an agent that stood still, both come at once: the deaths may be read first."""

    def overdue() -> None:
        agent._hear(rdzv.LeaseLost(0, "this agent stood still"))

    rendezvous: Any = SimpleNamespace(check_lease=overdue)
    narrator: Any = SimpleNamespace(record=lambda *given: None, conclude=lambda *given: None)
    agent = Agent(running(), always, rendezvous, narrator)
    agent._met = True
    agent._crew = SimpleNamespace(stop=lambda action: None)  # type: ignore[assignment]
    agent.post(exited(0, -9))
    assert agent.state.failure is not None and agent.state.failure.kind is ev.FailureKind.LEASE


def test_a_generation_that_another_node_ended_has_its_progress_here_and_is_not_waited_for() -> None:
    state = tell(running(), ev.ProgressNoted(0, Progress(True, ticks=70))).state
    found = tell(state, rdzv.PeerFailed(0, "b", "its rank died"), judge=later)
    assert found.state.history[-1].ticks == 70
    assert none(do.WakeAt, found) and found.state.recovery == Recovery()
    state = tell(state, exited(1, 1), judge=later).state
    assert state.recovery is not None and state.recovery.delayed, "its own failure is"


def test_the_step_of_a_failure_is_the_failed_ranks_own_and_progress_the_highest() -> None:
    failed = tell(running(), ev.WorkerFailing(0, 1, replace(WORDS, ticks=6), Progress(True, 9, 8)))
    record = failed.state.history[-1]
    assert (record.step, record.ticks, record.failed_at) == (9, 8, (7, 6))
    assert [a.fields["step"] for a in failed.actions if isinstance(a, do.Record)] == [7]
    silent = tell(running(), ev.WorkerFailing(0, 1, replace(WORDS, step=None), Progress(True, 9, 8)))
    assert silent.state.history[-1].failed_at == (9, 8), "it told none"
    corrected = tell(failed.state, ev.WorkerExited(0, 0, -9, 1.0, Progress(True, 9, 8)))
    assert [(a.name, a.fields.get("step")) for a in corrected.actions if isinstance(a, do.Record)] == [
        ("worker_exited", None),
        ("cause_corrected", 9),
    ]


def test_what_only_another_node_heard_saved_is_progress_here() -> None:
    failed = tell(running(), exited(0, -9))
    assert the(do.Join, failed).joining.offers == {SAVED: [0, 0]}
    shared = {SAVED: most_saved([{SAVED: [0, 0]}, {SAVED: [0, 7]}, {SAVED: "x"}, {}])}
    agreed = tell(failed.state, WorldAgreed(replace(world(1), shared=shared)))
    assert agreed.state.history[-1].checkpoints == 7
    corrected = tell(agreed.state, ev.WorkerFailing(0, 1, WORDS))
    assert corrected.state.history[-1].checkpoints == 7, "also when another rank proves to be the cause"
    stale = tell(failed.state, WorldAgreed(replace(world(1), shared={SAVED: [5, 7]})))
    assert stale.state.history[-1].checkpoints == 0
