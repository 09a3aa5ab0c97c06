"""The ranks of this node: started, watched and stopped, one generation after the other.

A rank comes from a warm standby when there is one, else from a cold start; nobody else needs to know which.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.launcher.config import StopConfig
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.actions import Manner, StopWorkers
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.processes.orphans import reap_adopted
from ftlaunch.launcher.processes.process import SpawnSpec, WorkerProcess, spawn
from ftlaunch.launcher.processes.teardown import Signs, Teardown
from ftlaunch.launcher.ranks.plan import Rank
from ftlaunch.rendezvous.interface import Lesson, World

Post = Callable[[ev.Event], None]


class Output(Protocol):
    """Where the output of ranks goes."""

    def attach(self, rank: Rank) -> tuple[int, int]:
        """Write ends for stdout and stderr, to be closed by the caller after the spawn."""

    async def drained(self, generation: int) -> None:
        """Return when everything the generation wrote is in its files, or a bound has passed."""


class Ear(Protocol):
    """What the crew needs from the hearing side."""

    def expect(self, world: World, workers: Sequence[WorkerProcess]) -> None:
        """These processes are the ranks now; forget those of older generations."""

    def exited(self, local_rank: int, exit_code: int) -> None:
        """A rank has ended; everything that it said before is taken in when this returns."""

    def progress(self) -> Progress:
        """How far the generation came."""

    def in_checkpoint(self, worker: WorkerProcess) -> bool:
        """Whether the rank is writing a checkpoint."""

    async def collect_evidence(self) -> tuple[str, ...]:
        """Collect the stacks of all ranks; bounded, nobody is killed meanwhile."""

    def note_end(self) -> None:
        """The generation ends: write down how far it came."""


class Pool(Protocol):
    """Warm standby workers."""

    def release(self, rank: Rank) -> WorkerProcess | None:
        """Turn a standby into this rank; ``None`` when there is none."""

    def ready(self) -> int:
        """How many could become ranks at once."""

    def pids(self) -> Collection[int]:
        """The standbys that are not ranks."""

    def pause(self) -> None:
        """Start no new standby now."""

    def fill_soon(self) -> None:
        """Training is under way."""

    def learn(self, lesson: Lesson) -> None:
        """What the running generation has loaded by its first step."""

    def close(self) -> None:
        """End all standbys."""


class Crew:
    """Owns the worker processes of this node."""

    def __init__(
        self,
        stop: StopConfig,
        plan: Callable[[World], Sequence[Rank]],
        output: Output,
        ear: Ear,
        post: Post,
        run: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.workers: list[WorkerProcess] = []
        self.generation = -1
        self.pool: Pool | None = None
        self.teach: Callable[[Lesson], None] = lambda lesson: None
        """Gets what the ranks had loaded by their first step, for spare nodes."""
        self.ask_to_save: Callable[[], None] = lambda: None
        """Lets ``should_save()`` be true in all ranks."""
        self.ranks_are: Callable[[Sequence[int]], None] = lambda pids: None
        """Gets the pids of what runs, whenever it is more or nothing any more: for the guardian."""
        self._gone: int | None = None
        """The generation of which nothing is left."""
        self._farewells: set[int] = set()
        self._polling: set[int] = set()
        self.helpers: set[int] = set()
        """Pids of our own children that are no ranks: guardian, health checks."""
        self.teardown: Teardown | None = None
        self.on_evidence: Callable[[tuple[str, ...]], None] = lambda blocks: None
        """Gets what was collected of ranks that are about to be killed for a stall."""
        self._stop = stop
        self._plan = plan
        self._output = output
        self._ear = ear
        self._post = post
        self._run = run

    def start(self, world: World) -> None:
        """Start all ranks; WorkersStarted or SpawnFailed follows. About 1 ms for each."""
        self.generation = world.generation
        self.workers = []
        self._farewells = set()
        self._polling = set()
        self.teardown = None
        warm = 0
        failed: ev.SpawnFailed | None = None
        for rank in self._plan(world):
            worker = self.pool.release(rank) if self.pool is not None else None
            warm += worker is not None
            try:
                self.workers.append(worker or self._start_cold(rank))
                self.ranks_are([worker.pid for worker in self.workers])
            except SpawnError as error:
                pids = tuple(worker.pid for worker in self.workers)
                failed = ev.SpawnFailed(world.generation, rank.local_rank, str(error), pids)
                break
        self._ear.expect(world, self.workers)
        # Also when one could not be started: the end of those before it is waited for.
        for local_rank, worker in enumerate(self.workers):
            worker.watch(self._on_exit(world.generation, local_rank))
        self._post(failed or ev.WorkersStarted(world.generation, tuple(w.pid for w in self.workers), warm))

    def note_last_words(self, local_rank: int) -> None:
        """The rank has said its last words and is on its way out by itself."""
        if local_rank < len(self.workers):
            self._farewells.add(self.workers[local_rank].pid)

    def note_polling(self, local_rank: int) -> None:
        """The rank's script asks by itself whether it should save."""
        if local_rank < len(self.workers):
            self._polling.add(self.workers[local_rank].pid)

    def stop(self, action: StopWorkers) -> None:
        """Stop all ranks; WorkersGone or WorkersUnkillable follows."""
        if self.pool is not None:
            self.pool.pause()
        if self._gone == action.generation:
            # The ranks had ended well; a peer's failure wants them once more.
            self._post(ev.WorkersGone(action.generation))
            return
        if self.teardown is not None:
            if action.manner is Manner.NOW:
                self.teardown.hurry()
            return
        self._ear.note_end()
        if action.manner is Manner.POLITE:
            self.ask_to_save()
        self.teardown = Teardown(
            self.workers,
            self._stop,
            self._outsiders,
            Signs(self._ear.in_checkpoint, self._has_last_words, lambda worker: worker.pid in self._polling),
        )
        self._run(self._stop_all(action, self.teardown))

    async def _stop_all(self, action: StopWorkers, teardown: Teardown) -> None:
        if action.evidence:
            self.on_evidence(await self._ear.collect_evidence())
        leftovers = await teardown.run(action.manner, action.signum)
        self.reap()
        await self._output.drained(action.generation)
        if leftovers:
            reason = "cannot be killed: " + "; ".join(str(leftover) for leftover in leftovers[:5])
            self._post(ev.WorkersUnkillable(action.generation, reason))
        else:
            self._gone = action.generation
            self.ranks_are(())
            self._post(ev.WorkersGone(action.generation))

    def reap(self) -> None:
        """Reap adopted orphans; called on SIGCHLD."""
        reap_adopted({worker.pid for worker in self.workers} | set(self._outsiders()))

    def training_resumed(self) -> None:
        """The first beat of the generation was heard: standbys may be made ready again."""
        if self.pool is not None:
            self.pool.fill_soon()

    def modules_learned(self, names: Sequence[str], environment: Mapping[str, str | None]) -> None:
        """What the ranks had loaded by their first step."""
        lesson = Lesson(names, environment)
        self.warm_up(lesson)
        self.teach(lesson)

    def warm_up(self, lesson: Lesson) -> None:
        """Let standbys import this."""
        if self.pool is not None:
            self.pool.learn(lesson)

    def checkpoint_left(self, local_rank: int) -> None:
        """The rank has left its checkpoint section: a stop that waits for it need not wait any more."""
        if self.teardown is not None and local_rank < len(self.workers):
            self.teardown.release(self.workers[local_rank])

    def _has_last_words(self, worker: WorkerProcess) -> bool:
        return worker.pid in self._farewells

    def _outsiders(self) -> Collection[int]:
        return self.helpers | set(self.pool.pids() if self.pool is not None else ())

    def _start_cold(self, rank: Rank) -> WorkerProcess:
        stdout, stderr = self._output.attach(rank)
        try:
            return spawn(SpawnSpec(rank.argv, rank.environment, stdout, stderr, rank.pass_fds))
        finally:
            for descriptor in {stdout, stderr}:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _on_exit(self, generation: int, local_rank: int) -> Callable[[WorkerProcess], None]:
        def exited(worker: WorkerProcess) -> None:
            code = worker.exit_code if worker.exit_code is not None else -9
            self._ear.exited(local_rank, code)
            at = worker.exited_at if worker.exited_at is not None else 0.0
            own = self.teardown is None or worker.pid not in self.teardown.killed | self.teardown.asked
            self._post(ev.WorkerExited(generation, local_rank, code, at, self._ear.progress(), own))

        return exited
