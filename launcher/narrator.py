"""Tells what happens: every event to ``events.jsonl``, every incident to its file, a few lines to the user."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ftlaunch.launcher import clock
from ftlaunch.launcher.decision import actions as do
from ftlaunch.launcher.decision.events import Failure, FailureKind
from ftlaunch.launcher.decision.state import State, WorkerState
from ftlaunch.launcher.journal.records import OF_THE_FAILED, RECOVERY, EventLog
from ftlaunch.launcher.journal.rundir import RunDir
from ftlaunch.launcher.say import Say

if TYPE_CHECKING:
    from ftlaunch.launcher.evidence.case import Case
    from ftlaunch.launcher.evidence.inquiry import Inquiry
    from ftlaunch.launcher.journal.incident import FailureCause, Incident, Moment, RankEnd

_SPEAK_S = 0.2
"""Nobody reads faster, and by then the ranks are mostly stopped and started anew: that comes first."""
_SETTLE_S = 0.1


@dataclass(frozen=True)
class Stopped:
    """Which leaders got which signal from us in the generation's teardown."""

    killed: Collection[int] = ()
    asked: Collection[int] = ()


class Investigating(Protocol):
    """Who knows the one that finds out why ranks died; see :class:`ftlaunch.launcher.node.node.Node`."""

    @property
    def inquiry(self) -> Inquiry | None:
        """That one, if it is loaded already."""

    def inquire(self) -> Inquiry:
        """That one, loaded now if need be."""


class Narrator:
    """Owns the current incident: begun when a generation fails, completed as the next one gets going."""

    def __init__(self, events: EventLog, run: RunDir | None, say: Say, stopped: Callable[[], Stopped]) -> None:
        self.incident: Incident | None = None
        self.failure: Failure | None = None
        self.evidence: tuple[str, ...] = ()
        self.faults: dict[int, tuple[int, str]] = {}
        """By global rank: how often it was the first to fail, and of what last."""
        self.node: Investigating | None = None
        """Has the one who finds out what was behind a failure."""
        self._events = events
        self._run = run
        self._say = say
        self._stopped = stopped
        self._case: Callable[[], Case] | None = None
        self._unsaid: Callable[[], None] | None = None
        self._moments: dict[str, float] = {}
        self._failed_generation: int | None = None

    def record(self, action: do.Record, state: State) -> None:
        """Write one event, and one line for the user where it says so."""
        rank = _global_rank(state, action.local_rank)
        fields = dict(action.fields)
        if action.local_rank is not None:
            fields["local_rank"] = action.local_rank
        self._events.write(action.name, generation=action.generation, rank=rank, reason=action.reason or None, **fields)
        if action.say or action.name == "training_resumed":
            self._speak_up()
        if action.say:
            self._say.notice(action.reason)
        if action.name == "training_resumed" and self.node is not None and self.node.inquiry is not None:
            self.node.inquiry.refresh()
        if action.name == "failure_detected":
            self._failed_generation = action.generation
        if self._failed_generation is not None and action.name == "workers_unkillable":
            self._complete(state)
        if self._failed_generation is None or not self._belongs(action):
            return
        self._note_moment(action)
        if action.name == "workers_stopped":
            self._complete(state)
        if action.name == "workers_started" and self._case is not None:
            asyncio.get_running_loop().call_later(_SETTLE_S, self.settle)

    def _belongs(self, action: do.Record) -> bool:
        """Whether this is a moment of the recovery under way: of the failed generation until it is gone, then later."""
        generation = -1 if action.generation is None else action.generation
        failed = -1 if self._failed_generation is None else self._failed_generation
        told = generation == failed if action.name in OF_THE_FAILED else generation > failed
        return action.name in RECOVERY and told

    def conclude(self, action: do.Conclude, state: State) -> None:
        """The generation's fate is decided: begin its incident and tell the user."""
        from ftlaunch.launcher.journal.incident import Incident

        self.settle()
        failure = action.failure
        self.failure = failure
        decision = "restart" if action.restart else "stop"
        cause = self._cause(failure, state)
        self.incident = Incident(
            failure.generation, cause, decision, action.reason, time=clock.wall(), timeline=self._timeline()
        )
        self._events.write(
            "decided", generation=failure.generation, rank=cause.rank, reason=action.reason, decision=decision
        )
        self._write()
        if cause.rank is not None:
            count, _ = self.faults.get(cause.rank, (0, ""))
            self.faults[cause.rank] = (count + 1, cause.reason)
        self._unsaid = partial(self._announce, f"{_subject(cause)} {failure.reason}", action.reason)
        if self.node is None:
            self._speak_up()
            return
        self._case = self._make_case(failure, state)
        loop = asyncio.get_running_loop()
        loop.call_later(_SPEAK_S, self._speak_up)
        if self.node.inquiry is not None:
            loop.call_soon(self.node.inquiry.note, failure.generation)

    def _speak_up(self) -> None:
        """Tell the user of the failure, unless that is done: before anything that follows from it is told."""
        unsaid, self._unsaid = self._unsaid, None
        if unsaid is not None:
            unsaid()

    def _announce(self, line: str, decision_reason: str) -> None:
        """What happened and what follows, by the better one of two names for it."""
        verdict, hint = None, ""
        if self.node is not None and self._case is not None:
            verdict = self.node.inquire().judge_first(self._case())
        if verdict is not None and self.incident is not None:
            from ftlaunch.launcher.evidence.case import says_more

            self.incident = replace(self.incident, diagnosis=verdict)
            self._write()
            if says_more(verdict):
                line, hint = str(verdict), verdict.hint
        self._say.notice(f"{line}; {decision_reason}" + (f"\nhint: {hint}" if hint else ""))

    def settle(self) -> None:
        """Nothing more will be known of the last failure: complete its incident. A few ms."""
        self._speak_up()
        make, self._case = self._case, None
        if make is None or self.node is None or self.incident is None:
            return
        before = self.incident.diagnosis
        answer = self.node.inquire().investigate(make())
        verdict = answer.verdict
        self.incident = replace(self.incident, diagnosis=verdict, others=answer.others, progress=answer.progress)
        self._write()
        if verdict is None:
            return
        self._events.write(
            "diagnosed",
            generation=self.incident.generation,
            rank=verdict.rank,
            reason=verdict.sentence,
            kind=verdict.kind,
            confidence=verdict.confidence,
            hint=verdict.hint,
        )
        if before is not None and (before.kind, before.rank) != (verdict.kind, verdict.rank):
            self._say.notice(f"on a closer look: {verdict}" + (f"\nhint: {verdict.hint}" if verdict.hint else ""))

    def _make_case(self, failure: Failure, state: State) -> Callable[[], Case]:
        """For the inquiry. Made only when it is needed: what it consists of is not loaded before."""
        inquiry = self.node.inquiry if self.node is not None else None
        sources = inquiry.sources if inquiry is not None else None
        ages = sources.ages(failure.at) if sources is not None else {}
        stopped = self._stopped()

        def make() -> Case:
            from ftlaunch.launcher.evidence.case import Case

            first_rank = state.world.rank_offset if state.world is not None else 0
            gpus = sources.gpus() if sources is not None else {}
            return Case(failure, state.workers, first_rank, stopped.killed, stopped.asked, ages, gpus)

        return make

    def add_evidence(self, blocks: tuple[str, ...]) -> None:
        """Stacks and the like, collected before the ranks were stopped."""
        self.evidence += blocks
        if self.incident is not None:
            cause = replace(self.incident.cause, evidence=self.incident.cause.evidence + blocks)
            self.incident = replace(self.incident, cause=cause)
            self._write()

    def _cause(self, failure: Failure, state: State) -> FailureCause:
        from ftlaunch.launcher.journal.incident import cause_of

        worker = state.workers.get(failure.local_rank) if failure.local_rank is not None else None
        return cause_of(
            failure,
            rank=_global_rank(state, failure.local_rank),
            pid=worker.pid if worker is not None and worker.pid else None,
            host=os.uname().nodename,
            evidence=self.evidence,
        )

    def _note_moment(self, action: do.Record) -> None:
        at = clock.monotonic()
        if action.name == "failure_detected":
            self._moments = {"failed": float(action.fields.get("at", at))}
            self.evidence = ()
        self._moments[action.name] = at
        if action.name == "training_resumed" and "failed" in self._moments:
            self._say.notice(f"training goes on, {at - self._moments['failed']:.2f} s after the failure")
        if action.name in ("workers_started", "training_resumed") and self.incident is not None:
            self.incident = replace(self.incident, timeline=self._timeline())
            self._write()
        if action.name == "training_resumed":
            self._failed_generation = None

    def _complete(self, state: State) -> None:
        """The ranks are gone, as far as they can be."""
        incident = self.incident
        if incident is None or self.failure is None:
            return
        ends = _rank_ends(state, self._stopped())
        if self.node is not None:
            self._case = self._make_case(state.failure or self.failure, state)
        code = next((end.exit_code for end in ends if end.local_rank == incident.cause.local_rank), None)
        if code is not None and code >= 0 and self.failure.kind is not FailureKind.STALL:
            incident = replace(incident, cause=replace(incident.cause, exit_code=code))
        self.incident = replace(incident, consequences=ends, timeline=self._timeline())
        self._write()

    def _timeline(self) -> tuple[Moment, ...]:
        from ftlaunch.launcher.journal.incident import Moment

        return tuple(Moment(name, at) for name, at in self._moments.items())

    def _write(self) -> None:
        from ftlaunch.launcher.journal.incident import write_incident

        if self._run is not None and self.incident is not None:
            with contextlib.suppress(OSError):
                # events.jsonl has the facts as well, and has complained already if the disk is full.
                write_incident(self._run.incidents, self.incident)


def _global_rank(state: State, local_rank: int | None) -> int | None:
    if local_rank is None or state.world is None:
        return None
    return state.world.rank_offset + local_rank


def _subject(cause: FailureCause) -> str:
    if cause.rank is None:
        return "generation ends:"
    return f"rank {cause.rank}" + (f" (pid {cause.pid})" if cause.pid is not None else "")


def _rank_ends(state: State, stopped: Stopped) -> tuple[RankEnd, ...]:
    """How each rank ended. One that was asked to end counts as stopped by us, whatever its code."""
    return tuple(_rank_end(state, worker, stopped) for worker in state.workers.values())


def _rank_end(state: State, worker: WorkerState, stopped: Stopped) -> RankEnd:
    from ftlaunch.launcher.journal.incident import RankEnd

    killed = worker.pid in stopped.killed and worker.exit_code == -9
    asked = worker.pid in stopped.asked and not killed
    return RankEnd(
        rank=_global_rank(state, worker.local_rank) or 0,
        local_rank=worker.local_rank,
        host=os.uname().nodename,
        pid=worker.pid or None,
        exit_code=worker.exit_code,
        at=worker.exited_at,
        stopped_by_launcher=killed or asked,
        how="SIGKILL" if killed else "SIGTERM" if asked else "",
    )
