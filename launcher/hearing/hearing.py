"""The agent's ear: what ranks say, and what their silence means, as events.

Messages, exits and looks at the kernel go into :class:`ftlaunch.heartbeat.watching.watch.Watch`, which judges; here
its verdicts become events, and its deadlines timers. Nothing is polled: while ranks beat, the next deadline is far
away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ftlaunch.heartbeat.watching import procstate
from ftlaunch.heartbeat.watching.elsewhere import Survey
from ftlaunch.heartbeat.watching.endpoint import EndpointError, open_endpoint
from ftlaunch.heartbeat.watching.listener import Heard, Listener
from ftlaunch.heartbeat.watching.suspects import evidence_of
from ftlaunch.heartbeat.watching.verdicts import AT_ONCE, Assessment, Progress, Stall
from ftlaunch.heartbeat.watching.watch import Watch
from ftlaunch.heartbeat.wire import Kind, Message
from ftlaunch.launcher import clock
from ftlaunch.launcher.config import HeartbeatConfig
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.hearing import spoken
from ftlaunch.launcher.hearing.batched import BatchedReader
from ftlaunch.launcher.hearing.consultation import Consultation
from ftlaunch.launcher.hearing.peers import Peers
from ftlaunch.launcher.hearing.stacks import Findings, StackCollector
from ftlaunch.launcher.processes.process import WorkerProcess
from ftlaunch.launcher.ranks.wires import DumpFiles
from ftlaunch.rendezvous.interface import World

Tell = Callable[..., None]
PROGRESS_EVERY_S = 5.0
_QUIET_WARNING_S = 10.0


class Audience(Protocol):
    """Who acts on what is no decision: the crew with its standbys."""

    def training_resumed(self) -> None:
        """The first beat of the generation."""

    def modules_learned(self, names: Sequence[str], environment: Mapping[str, str | None]) -> None:
        """What the ranks had loaded by their first step."""

    def checkpoint_left(self, local_rank: int) -> None:
        """A rank has left its checkpoint section."""

    def note_polling(self, local_rank: int) -> None:
        """A rank asks by itself whether it should save."""

    def note_last_words(self, local_rank: int) -> None:
        """A rank is on its way out by itself."""


class Hearing:
    """Owns the heartbeat socket and the judgement of the ranks of the current generation."""

    def __init__(self, config: HeartbeatConfig, environment: Mapping[str, str], dumps: DumpFiles, tell: Tell) -> None:
        """Raises :class:`UsageError` when there is no place for the socket."""
        try:
            self.endpoint = open_endpoint(environment)
        except EndpointError as error:
            raise UsageError(str(error)) from None
        self.watch = Watch(config, clock.monotonic())
        self.on_message: Callable[[Heard], None] | None = None
        """Told of every message of a rank once it was taken in; for drills."""
        self._config = config
        self._tell = tell
        self._listener = Listener(self.endpoint.receiver, self._belongs)
        self._stacks = StackCollector(dumps, environment)
        self._workers: Sequence[WorkerProcess] = ()
        self._post: Callable[[ev.Event], None] = lambda event: None
        self._audience: Audience | None = None
        self._ear: BatchedReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._noted_at = 0.0
        self._first_beat_at: float | None = None
        self._judged = False
        self._findings: Findings | None = None
        self._inquiry: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._consultation: Consultation | None = None

    @property
    def socket_path(self) -> str:
        """What goes into FTLAUNCH_SOCKET; empty when ranks are not to be heard."""
        return self.endpoint.address if self._config.enabled else ""

    @property
    def tell(self) -> Tell:
        """Writes an event of what is heard."""
        return self._tell

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self, post: Callable[[ev.Event], None], audience: Audience) -> None:
        """Begin to listen."""
        self._post = post
        self._audience = audience
        self._ear = BatchedReader(self._listener.fileno(), self.listen)
        self._ear.open()

    def consult(self, peers: Peers) -> None:
        """Ask these before a rank is condemned for its silence, and answer them."""
        if self._config.enabled:
            self._consultation = Consultation(peers, self)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._ear is not None:
            self._ear.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._inquiry is not None:
            self._inquiry.cancel()
        self.endpoint.close()

    def expect(self, world: World, workers: Sequence[WorkerProcess]) -> None:
        """These processes are the ranks now; everything of an older generation is forgotten."""
        now = clock.monotonic()
        self._workers = workers
        self._listener.expect(world.generation, len(workers))
        pids = [worker.pid for worker in workers]
        self.watch.begin(world.generation, pids, now, world.rank_offset)
        if self._consultation is not None:
            self._consultation.expect(world)
        self._noted_at = now
        self._first_beat_at = None
        self._judged = False
        self._findings = None
        self._assess(now)

    def exited(self, local_rank: int, exit_code: int) -> None:
        """A rank has ended. Its last words were sent before it died, so they are in the socket now."""
        self.listen()
        now = clock.monotonic()
        self.watch.exited(local_rank, exit_code, now)
        self._assess(now)

    def note_end(self) -> None:
        """The generation ends, whatever follows: nobody is judged any more; write down how far it came."""
        self._judged = True
        now = clock.monotonic()
        self.watch.note_end(now)
        if self.watch.tracks.ranks:
            self._note_progress(now)

    # -- what others ask ----------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """How far this node's ranks came in this generation."""
        return self.watch.progress()

    def in_checkpoint(self, worker: WorkerProcess) -> bool:
        """Whether the rank is writing (or reading) a checkpoint."""
        local_rank = self._local_rank(worker)
        return local_rank is not None and self.watch.is_saving(local_rank)

    async def collect_evidence(self) -> tuple[str, ...]:
        """Stacks of all ranks, grouped, with the suspect named. Bounded; nobody is hurt."""
        if self._findings is None:
            self._findings = await self.look_at_stacks()
        return self._findings.blocks

    def heed(self, survey: Survey) -> None:
        """What all nodes told of a silence."""
        if self._judged:
            return
        self.listen()
        now = clock.monotonic()
        stall = self.watch.heed(survey, now)
        if stall is None:
            self._assess(now)
        elif not self._judged:
            self._accuse(stall)

    def note_asked(self, sentence: str) -> None:
        """Others were asked; what came of it."""
        self._tell("others_asked", reason=sentence, generation=self.watch.tracks.generation)

    async def look_at_stacks(self) -> Findings:
        """What the stacks of all ranks tell; one look at a time."""
        async with self._looking:
            tracks, now = self.watch.tracks, clock.monotonic()
            first = tracks.first_rank
            known = {first + track.local_rank: evidence_of(track, first, now) for track in tracks.ranks}
            alive = {first + i: (i, worker) for i, worker in enumerate(self._workers) if worker.alive}
            return await self._stacks.collect(alive, known)

    # -- messages -----------------------------------------------------------------------------------------------

    def listen(self) -> int:
        """Take in what has arrived; returns how many messages that were."""
        now = clock.monotonic()
        due = False
        taken = self._listener.drain(now)
        for heard in taken:
            due = self._take(heard) or due
            if self.on_message is not None:
                self.on_message(heard)
        for line in self._listener.notices(now):
            self._tell("messages_dropped", reason=line)
        if self._listener.overrun:
            # Beats of good ranks may not get through a flood: nobody is to suffer from that.
            self.watch.excuse(now)
        if due:
            self._assess(now)
        if self._first_beat_at is not None and now - self._noted_at >= PROGRESS_EVERY_S:
            self._note_progress(now)
        return len(taken)

    def children_changed(self) -> None:
        """SIGCHLD: perhaps a rank was stopped, or goes on, or calls us to hear its last words."""
        self.listen()
        self._assess(clock.monotonic())

    def _belongs(self, pid: int, generation: int, local_rank: int) -> bool:
        """The rank itself, or what it has started."""
        return local_rank < len(self._workers) and procstate.belongs_to(pid, self._workers[local_rank].pid)

    def _take(self, heard: Heard) -> bool:
        message = heard.message
        was_saving = self.watch.is_saving(message.local_rank)
        due = self.watch.hear(heard)
        if self._first_beat_at is None and message.kind in (Kind.BEAT, Kind.TICK):
            self._first_beat_at = heard.received_at
            self._post(ev.FirstBeat(message.generation))
            if self._audience is not None:
                self._audience.training_resumed()
            # Which step was the first one is known from this only.
            self._note_progress(heard.received_at)
        if was_saving and self._audience is not None and not self.watch.is_saving(message.local_rank):
            self._audience.checkpoint_left(message.local_rank)
        if message.kind is Kind.HELLO and message.payload.get("phase") == "polls" and self._audience is not None:
            self._audience.note_polling(message.local_rank)
        elif message.kind is Kind.LAST_WORDS:
            if self._audience is not None:
                self._audience.note_last_words(message.local_rank)
            self._post(spoken.last_words(message, self.progress()))
        elif message.kind is Kind.REQUEST:
            self._post(spoken.request(message, self.progress()))
        elif message.kind is Kind.MODULES:
            self._learn_modules(message)
        elif message.kind is Kind.CHECKPOINT:
            self._note_checkpoint(message)
            self._post(ev.CheckpointSaved(message.generation))
        return due

    def _learn_modules(self, message: Message) -> None:
        names, environment = message.payload.get("names"), message.payload.get("environment")
        if isinstance(names, list) and self._audience is not None:
            known = [name for name in names if isinstance(name, str)]
            self._audience.modules_learned(known, environment if isinstance(environment, dict) else {})

    def _note_checkpoint(self, message: Message) -> None:
        self._tell(
            "checkpoint_saved",
            generation=message.generation,
            rank=self.watch.tracks.first_rank + message.local_rank,
            step=message.payload.get("step"),
            path=str(message.payload.get("path", "")),
            source=str(message.payload.get("source", "")),
        )

    def _note_progress(self, now: float) -> None:
        self._noted_at = now
        progress = self.watch.progress()
        self._tell(
            "progress",
            generation=self.watch.tracks.generation,
            step=progress.step,
            ticks=progress.ticks,
            checkpoints=progress.checkpoints,
            checkpoint_step=progress.checkpoint_step,
            beating_since=self._first_beat_at,
            last_beat=max((track.beat_at for track in self.watch.tracks.ranks if track.beats), default=None),
        )

    # -- silence ------------------------------------------------------------------------------------------------

    def _assess(self, now: float) -> None:
        if not self._config.enabled or self._judged:
            return
        stalls = self._look(now)
        if stalls:
            self._act(stalls)

    def _look(self, now: float) -> Sequence[Stall]:
        """All stalls that there are now."""
        children = self.watch.wants_children(now)
        states = procstate.look(self.watch.pids(), children=children)
        assessment = self.watch.assess(states, now, clock.boottime() - now)
        self._wake_at(assessment.next_deadline)
        self._speak(assessment)
        return assessment.stalls

    def _wake_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline < math.inf:
            delay_s = max(0.0, deadline - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        # First what lies unread: nobody is to be judged by that.
        self.listen()
        self._assess(clock.monotonic())

    def _act(self, stalls: Sequence[Stall]) -> None:
        """One verdict ends the generation: the kernel's word first, then the longest silence."""
        stall = _worst(stalls)
        if stall.kind in AT_ONCE:
            self._accuse(stall)
        elif self._consultation is None or not self._consultation.needed:
            self._judged = True
            self._inquiry = asyncio.get_running_loop().create_task(self._find_culprit(stall))
        elif self._inquiry is None or self._inquiry.done():
            self._inquiry = asyncio.get_running_loop().create_task(self._consult(self._consultation, stall))

    async def _consult(self, consultation: Consultation, stall: Stall) -> None:
        """Ranks here may wait for one of another node: ask, and judge again by what is known then."""
        tracks = self.watch.tracks
        survey = await consultation.about(stall, tracks.first_rank + stall.local_rank)
        self.listen()
        now = clock.monotonic()
        over = self._judged or tracks is not self.watch.tracks
        standing = () if over else self._look(now)
        if not standing:
            return
        stall = _worst(standing)
        if stall.kind in AT_ONCE:
            self._accuse(stall)
        elif self.watch.be_patient(stall, survey, now):
            self._look(now)
        else:
            self._judged = True
            await self._find_culprit(stall)

    async def _find_culprit(self, stall: Stall) -> None:
        """Who is silent first is often a victim: the stacks tell who holds the others up."""
        tracks = self.watch.tracks
        findings = await self.look_at_stacks()
        if tracks is not self.watch.tracks:
            return
        self._findings = findings
        first = tracks.first_rank
        if findings.suspect is not None and findings.suspect != first + stall.local_rank:
            reason = f"holds up rank {first + stall.local_rank}, which {stall.reason} ({findings.why})"
            stall = stall._replace(local_rank=findings.suspect - first, reason=reason)
        self._accuse(stall)

    def _accuse(self, stall: Stall) -> None:
        self._judged = True
        self.watch.convict(stall)
        generation = self.watch.tracks.generation
        self._post(ev.WorkerStalled(generation, stall.local_rank, stall.kind, stall.reason, self.progress()))

    def _speak(self, assessment: Assessment) -> None:
        generation = self.watch.tracks.generation
        for warning in assessment.warnings:
            self._tell(
                "silence",
                reason=warning.reason,
                generation=generation,
                percent=warning.percent,
                section=warning.section,
                say=warning.limit_s >= _QUIET_WARNING_S,
            )
        for notice in assessment.notices:
            self._tell(notice.kind, reason=notice.reason, generation=generation, say=notice.kind == "traced")
        for straggler in self.watch.find_stragglers(clock.monotonic()):
            self._tell(
                "straggler" if straggler.lag is not None else "straggler_over",
                reason=straggler.lag.reason if straggler.lag is not None else "no longer the last",
                generation=generation,
                rank=self.watch.tracks.first_rank + straggler.local_rank,
                say=straggler.lag is not None,
            )

    def _local_rank(self, worker: WorkerProcess) -> int | None:
        return next((i for i, each in enumerate(self._workers) if each is worker), None)


def _worst(stalls: Sequence[Stall]) -> Stall:
    return min(stalls, key=lambda each: (each.kind not in AT_ONCE, -each.silence_s, each.local_rank))
