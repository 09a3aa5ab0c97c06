"""Stop a generation until nothing of it is left: leaders politely where that helps, then whole groups, then escapees.

Nothing here polls: deaths arrive through pidfds, for grandchildren too. All waits share one deadline per stage, and the
last one is bounded, because a process in uninterruptible sleep cannot be killed (proc(5), state D).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.config import StopConfig
from ftlaunch.launcher.decision.actions import Manner
from ftlaunch.launcher.host import proctree
from ftlaunch.launcher.processes.process import WorkerProcess

_SETTLED = 2
_PAUSE_S = 0.01


@dataclass(frozen=True)
class Leftover:
    """A process that survived SIGKILL, and why as far as the kernel tells."""

    pid: int
    state: str
    name: str
    waits_for: str

    def __str__(self) -> str:
        where = f", waiting in {self.waits_for}" if self.waits_for else ""
        return f"pid {self.pid} ({self.name}, state {self.state}{where})"


@dataclass(frozen=True)
class Signs:
    """What is known of a rank from what it said."""

    in_checkpoint: Callable[[WorkerProcess], bool] = lambda worker: False
    has_last_words: Callable[[WorkerProcess], bool] = lambda worker: False
    polls_save: Callable[[WorkerProcess], bool] = lambda worker: False


class Teardown:
    """One stop of one generation. :meth:`hurry` may make it more urgent while it runs."""

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        config: StopConfig,
        outsiders: Callable[[], Collection[int]],
        signs: Signs | None = None,
    ) -> None:
        self._workers = workers
        self._config = config
        self._outsiders = outsiders
        self._signs = signs or Signs()
        self._hurried = asyncio.Event()
        self._forced: set[int] = set()
        self.killed: set[int] = set()
        """Pids of leaders that got SIGKILL from us."""
        self.asked: set[int] = set()
        """Pids of leaders that got the polite signal from us."""

    def hurry(self) -> None:
        """SIGKILL everything at once, whatever grace was promised."""
        self._hurried.set()
        for worker in self._workers:
            self._kill(worker)

    async def run(self, manner: Manner, signum: int = signal.SIGTERM) -> tuple[Leftover, ...]:
        """Stop everything. Returns what could not be killed, normally nothing.

        Takes at most the grace of ``manner`` plus ``unkillable_timeout_s``.
        """
        if manner is Manner.POLITE:
            await self._ask(self._alive(), signum, self._config.shutdown_timeout_s)
        elif manner is Manner.FAILED:
            await self._stop_failed()
        for worker in self._workers:
            self._kill(worker)
        deadline = clock.monotonic() + self._config.unkillable_timeout_s
        await _wait_until_exited(self._alive(), deadline)
        leftovers = await self._sweep(deadline)
        for worker in self._workers:
            worker.reap()
        return leftovers

    async def _stop_failed(self) -> None:
        """A rank stuck in a collective runs no Python handler: only ranks that have a handler get a grace.

        A rank that said its last words is running its exit handlers: it is not signalled, only waited for.
        """
        graced, saving, leaving = [], [], []
        for worker in self._alive():
            if self._signs.has_last_words(worker):
                leaving.append(worker)
            elif self._signs.in_checkpoint(worker):
                saving.append(worker)
            elif proctree.has_handler(worker.pid, signal.SIGTERM) and not proctree.is_stopped(worker.pid):
                graced.append(worker)
            else:
                self._kill(worker)
        await asyncio.gather(
            self._ask(graced, signal.SIGTERM, self._config.kill_grace_s),
            self._let_end(saving, self._config.checkpoint_grace_s),
            self._let_end(leaving, self._config.kill_grace_s),
        )

    async def _let_end(self, workers: Sequence[WorkerProcess], grace_s: float) -> None:
        if workers:
            await self._wait_or_hurry(workers, grace_s)

    async def _ask(self, workers: Sequence[WorkerProcess], signum: int, grace_s: float) -> None:
        if not workers:
            return
        for worker in workers:
            self.asked.add(worker.pid)
            wanted = self._suitable(worker, signum)
            if wanted is not None and self._config.group_scope:
                worker.signal_group(wanted)
            elif wanted is not None:
                # The leader only: its data-loader children must live while it saves.
                worker.signal(wanted)
            # A stopped process keeps every signal but SIGKILL pending (signal(7)).
            worker.signal(signal.SIGCONT)
        await self._wait_or_hurry(workers, grace_s)

    def _suitable(self, worker: WorkerProcess, signum: int) -> int | None:
        """The signal to send: one that the rank handles, or none if it would die of it although it polls."""
        if signum == signal.SIGINT or proctree.has_handler(worker.pid, signum):
            return signum
        if proctree.has_handler(worker.pid, signal.SIGTERM):
            return signal.SIGTERM
        if self._signs.polls_save(worker):
            return None
        # Nothing can be saved: the default action ends it at once. SIGTERM, because that of others may be to ignore.
        return signal.SIGTERM

    async def _wait_or_hurry(self, workers: Sequence[WorkerProcess], grace_s: float) -> None:
        exits: asyncio.Future[Any] = asyncio.gather(*(asyncio.shield(worker.exited) for worker in workers))
        hurried: asyncio.Future[Any] = asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait({exits, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (exits, hurried):
            waiter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiter

    def release(self, worker: WorkerProcess) -> None:
        """The rank has left its checkpoint section: its grace is over."""
        if worker in self._workers:
            self._kill(worker)

    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.alive]

    def _kill(self, worker: WorkerProcess) -> None:
        if worker.alive:
            if not _is_dying(worker.pid):
                self.killed.add(worker.pid)
            worker.signal(signal.SIGKILL)
        # Also when the leader is gone: its group lives as long as one member does.
        worker.signal_group(signal.SIGKILL)

    async def _sweep(self, deadline: float) -> tuple[Leftover, ...]:
        """Kill what descends from us until the process table shows none, also what was forked while we looked."""
        clean = 0
        while True:
            found = self._escapees()
            clean = 0 if found else clean + 1
            if not found and (clean == _SETTLED or not self._forced):
                return ()
            if clock.monotonic() >= deadline:
                return tuple(_leftover(entry) for entry in found)
            await _kill_and_wait(found, deadline)
            self._forced.update(entry.pid for entry in found)

    def _escapees(self) -> list[proctree.ProcessEntry]:
        exited = {worker.pid for worker in self._workers if not worker.alive}
        below = proctree.descendants(proctree.read_table(), os.getpid(), self._outsiders())
        return [entry for entry in below if entry.pid not in exited and entry.state not in "ZX"]


def _is_dying(pid: int) -> bool:
    """Dead of something else already, although its death was not reported yet: that comes only after its memory.

    A child that was not reaped has an entry: where none can be read (no descriptor is left), nothing is known.
    """
    entry = proctree.read_entry(pid)
    return entry is not None and (entry.exiting or entry.state in "ZX")


async def _wait_until_exited(workers: Sequence[WorkerProcess], deadline: float) -> None:
    if workers:
        await asyncio.wait([worker.exited for worker in workers], timeout=max(0.0, deadline - clock.monotonic()))


async def _kill_and_wait(entries: Sequence[proctree.ProcessEntry], deadline: float) -> None:
    """SIGKILL each process, pinned by a pidfd, and wait until all are dead or the deadline has passed."""
    loop = asyncio.get_running_loop()
    pidfds: dict[int, asyncio.Future[None]] = {}
    try:
        for entry in entries:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(entry.pid)
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                except OSError:
                    os.close(pidfd)
                    continue
                pidfds[pidfd] = loop.create_future()
                loop.add_reader(pidfd, _resolve, pidfds[pidfd])
        if pidfds:
            await asyncio.wait(pidfds.values(), timeout=max(0.0, deadline - clock.monotonic()))
        else:
            # All of them vanished meanwhile, or none may be signalled (a setuid program): do not spin on that.
            await asyncio.sleep(_PAUSE_S)
    finally:
        for pidfd in pidfds:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _leftover(entry: proctree.ProcessEntry) -> Leftover:
    try:
        with open(f"/proc/{entry.pid}/wchan", encoding="ascii", errors="replace") as wchan:
            waits_for = wchan.read().strip()
    except OSError:
        waits_for = ""
    return Leftover(entry.pid, entry.state, entry.name, "" if waits_for == "0" else waits_for)
