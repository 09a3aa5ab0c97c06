"""The agent's ear: beats in, what they mean out as events.

Everything a worker says arrives as a datagram (:mod:`ftlaunch.heartbeat.wire`); what it means for one rank is kept in
:class:`ftlaunch.heartbeat.tracks.Track`; whether silence is a stall is judged by :mod:`ftlaunch.heartbeat.stalls`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ftlaunch.heartbeat import lastwords
from ftlaunch.heartbeat.endpoint import open_endpoint
from ftlaunch.heartbeat.limits import Limits, LimitSettings
from ftlaunch.heartbeat.listener import Heard, Listener
from ftlaunch.heartbeat.tracks import Track
from ftlaunch.heartbeat.wire import Kind, Message
from ftlaunch.launcher import clock
from ftlaunch.launcher import events as ev
from ftlaunch.launcher.config import HeartbeatConfig
from ftlaunch.launcher.evidence_stacks import StackCollector
from ftlaunch.launcher.plan import DumpFiles
from ftlaunch.launcher.process import WorkerProcess
from ftlaunch.launcher.watch import Watch
from ftlaunch.rendezvous.interface import World

Tell = Callable[..., None]
PROGRESS_EVERY_S = 5.0


class Listening(Protocol):
    """Who wants to know more than the decision table: the standby pool, the crew."""

    def training_resumed(self) -> None:
        """The first beat of the generation."""

    def modules_learned(self, names: Sequence[str], environment: Mapping[str, str | None]) -> None:
        """What the ranks had loaded by their first step."""

    def checkpoint_left(self, local_rank: int) -> None:
        """A rank has left its checkpoint section."""


class Hearing:
    """Owns the heartbeat socket and what is known of the ranks of the current generation."""

    def __init__(self, config: HeartbeatConfig, environment: Mapping[str, str], dumps: DumpFiles, tell: Tell) -> None:
        self.endpoint = open_endpoint(environment)
        self.tracks: dict[int, Track] = {}
        self.limits = Limits(
            LimitSettings(
                config.init_timeout_s,
                config.hang_timeout_s,
                config.section_timeouts_s,
                config.safety_factor,
                config.floor_s,
            )
        )
        self._config = config
        self._tell = tell
        self._listener = Listener(self.endpoint.socket, self._accepts)
        self._generation = -1
        self._world: World | None = None
        self._workers: Sequence[WorkerProcess] = ()
        self._known_pids: dict[int, int] = {}
        self._post: Callable[[ev.Event], None] | None = None
        self._audience: Listening | None = None
        self._noted_at = 0.0
        self.watch = Watch(config, self.limits, tell)
        self._stacks = StackCollector(dumps)

    @property
    def socket_path(self) -> str:
        """What goes into FTLAUNCH_SOCKET; empty when ranks are not to be heard."""
        return self.endpoint.address if self._config.enabled else ""

    def start(self, post: Callable[[ev.Event], None], audience: Listening) -> None:
        """Begin to listen."""
        self._post = post
        self._audience = audience
        asyncio.get_running_loop().add_reader(self.endpoint.socket, self.listen)
        if self._config.enabled:
            self.watch.start(self._assess)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        asyncio.get_running_loop().remove_reader(self.endpoint.socket)
        self.watch.stop()
        self.endpoint.close()

    def expect(self, world: World, workers: Sequence[WorkerProcess]) -> None:
        """These processes are the ranks now; everything of an older generation is forgotten."""
        now = clock.monotonic()
        self._generation = world.generation
        self._world = world
        self._workers = workers
        self._known_pids = {worker.pid: local_rank for local_rank, worker in enumerate(workers)}
        self.tracks = {i: Track(i, worker.pid, now, last_progress=now) for i, worker in enumerate(workers)}
        self.watch.begin(workers)
        self._noted_at = now

    def listen(self) -> None:
        """Take in everything that has arrived."""
        now = clock.monotonic()
        for heard in self._listener.drain():
            self._take(heard, now)
        if now - self._noted_at >= PROGRESS_EVERY_S and any(track.beaten for track in self.tracks.values()):
            self._note_progress(now)

    def progress(self) -> ev.Progress:
        """How far this node's ranks came in this generation."""
        tracks = list(self.tracks.values())
        return ev.Progress(
            beaten=any(track.beaten for track in tracks),
            step=max((track.step for track in tracks if track.step is not None), default=None),
            ticks=max((track.ticks for track in tracks), default=0),
            checkpoints=max((track.checkpoints for track in tracks), default=0),
            checkpoint_step=max(
                (track.checkpoint_step for track in tracks if track.checkpoint_step is not None), default=None
            ),
        )

    def in_checkpoint(self, worker: WorkerProcess) -> bool:
        """Whether the rank is writing (or reading) a checkpoint."""
        track = self._track_of(worker)
        return track is not None and any(name == "checkpoint" for name, _ in track.sections)

    def has_last_words(self, worker: WorkerProcess) -> bool:
        """Whether the rank said its last words and is on its way out."""
        track = self._track_of(worker)
        return track is not None and track.last_words

    def children_changed(self) -> None:
        """SIGCHLD: perhaps a rank was stopped or goes on."""
        self.watch.look()

    async def collect_evidence(self) -> tuple[str, ...]:
        """Stacks of all ranks, grouped, with the suspect named. Takes at most half a second; nobody is hurt."""
        now = clock.monotonic()
        silence = {self._rank(i): now - track.alive_since for i, track in self.tracks.items()}
        alive = {self._rank(i): (i, worker) for i, worker in enumerate(self._workers) if worker.alive}
        return await self._stacks.collect(alive, silence)

    def note_end(self) -> None:
        """The generation ends: write down how far it came."""
        if self.tracks:
            self._note_progress(clock.monotonic())

    def dropped(self) -> Mapping[str, int]:
        """Messages that were not taken, by reason."""
        return dict(self._listener.dropped)

    def _rank(self, local_rank: int) -> int:
        return local_rank + (self._world.rank_offset if self._world is not None else 0)

    def _accepts(self, pid: int, message: Message) -> bool:
        """The rank itself, or a process of its session: what a ``--no-python`` wrapper has started."""
        if message.generation != self._generation or message.local_rank not in self.tracks:
            return False
        if pid not in self._known_pids:
            try:
                leader = os.getsid(pid)
            except OSError:
                return False
            if leader not in self._known_pids:
                return False
            self._known_pids[pid] = self._known_pids[leader]
        return self._known_pids[pid] == message.local_rank

    def _take(self, heard: Heard, now: float) -> None:
        message, track = heard.message, self.tracks[heard.message.local_rank]
        first = not any(each.beaten for each in self.tracks.values())
        was_saving = any(name == "checkpoint" for name, _ in track.sections)
        track.take(message, heard.pid, now, self.limits)
        if first and track.beaten:
            self._publish(ev.FirstBeat(self._generation))
            if self._audience is not None:
                self._audience.training_resumed()
        if was_saving and not any(name == "checkpoint" for name, _ in track.sections) and self._audience is not None:
            self._audience.checkpoint_left(track.local_rank)
        special = _SPECIAL.get(message.kind)
        if special is not None:
            special(self, message)

    def _take_last_words(self, message: Message) -> None:
        said = lastwords.from_payload(message.payload)
        words = ev.LastWords(
            exception="" if said.type == "SystemExit" else said.type,
            message=said.message,
            traceback=said.traceback,
            place=said.place,
            step=said.step,
            exit_code=said.exit_code,
            error_number=said.errno,
        )
        self._publish(ev.WorkerFailing(self._generation, message.local_rank, words, self.progress()))

    def _take_request(self, message: Message) -> None:
        reason = str(message.payload.get("reason", ""))[:1000] or "no reason given"
        if message.payload.get("what") == "restart":
            event: ev.Event = ev.RestartRequested(self._generation, reason, message.local_rank, self.progress())
        else:
            event = ev.StopRequested(self._generation, reason, message.local_rank)
        self._publish(event)

    def _take_modules(self, message: Message) -> None:
        names, environment = message.payload.get("names"), message.payload.get("environment")
        if isinstance(names, list) and self._audience is not None:
            self._audience.modules_learned(
                [name for name in names if isinstance(name, str)],
                environment if isinstance(environment, dict) else {},
            )

    def _take_checkpoint(self, message: Message) -> None:
        self._tell(
            "checkpoint_saved",
            generation=self._generation,
            rank=self._rank(message.local_rank),
            step=message.payload.get("step"),
            path=str(message.payload.get("path", "")),
            source=str(message.payload.get("source", "")),
        )

    def _note_progress(self, now: float) -> None:
        self._noted_at = now
        progress = self.progress()
        firsts = [track.first_progress for track in self.tracks.values() if track.first_progress is not None]
        self._tell(
            "progress",
            generation=self._generation,
            step=progress.step,
            ticks=progress.ticks,
            checkpoints=progress.checkpoints,
            checkpoint_step=progress.checkpoint_step,
            beating_since=min(firsts, default=None),
            last_beat=max((track.last_progress for track in self.tracks.values() if track.beaten), default=None),
        )

    def _assess(self, now: float) -> None:
        """The watch's pulse: everything that waits in the socket first, then the verdict."""
        self.listen()
        stall = self.watch.assess(list(self.tracks.values()), now)
        if stall is not None:
            self._publish(
                ev.WorkerStalled(self._generation, stall.local_rank, stall.kind, stall.reason, self.progress())
            )

    def _track_of(self, worker: WorkerProcess) -> Track | None:
        return next((track for track in self.tracks.values() if track.pid == worker.pid), None)

    def _publish(self, event: ev.Event) -> None:
        if self._post is not None:
            self._post(event)


_SPECIAL: dict[Kind, Callable[[Any, Message], None]] = {
    Kind.LAST_WORDS: Hearing._take_last_words,
    Kind.REQUEST: Hearing._take_request,
    Kind.MODULES: Hearing._take_modules,
    Kind.CHECKPOINT: Hearing._take_checkpoint,
}
