"""Warm standbys: one idle process per local rank, its imports done, that becomes a rank when one is needed.

Filled once a generation is at work, one process after the other and paced, so that the ranks are not disturbed; filled
again after use. Whatever goes wrong with a standby costs only that standby: the rank is then started cold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ftlaunch.heartbeat.standbys.frames import FrameError, FrameReader, encode
from ftlaunch.launcher.config import StandbyConfig, StandbyMode
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.host.spare_room import Pace, available_bytes, choose_pace, resident_bytes
from ftlaunch.launcher.processes.process import SpawnSpec, WorkerProcess, spawn
from ftlaunch.launcher.ranks.plan import Rank
from ftlaunch.launcher.ranks.staleness import Fingerprint
from ftlaunch.rendezvous.interface import Lesson

SETTLE_S = 2.0
PRELOAD_TIMEOUT_S = 300.0
MAX_FAILURES = 5
FIRST_GUESS_BYTES = 512 << 20
_SOCKET_BYTES = 1 << 20


class IdleOutput(Protocol):
    """Where a process that is no rank yet writes to."""

    def attach_idle(self, token: Hashable) -> tuple[int, int]:
        """Write ends for stdout and stderr, to be closed by the caller after the spawn."""

    def promote(self, token: Hashable, rank: Rank) -> None:
        """The process has become this rank."""

    def discard(self, token: Hashable) -> None:
        """The process will never be a rank."""


@dataclass
class _Standby:
    """One idle process."""

    local_rank: int
    process: WorkerProcess
    connection: socket.socket
    token: Hashable
    fingerprint: Fingerprint
    ready: bool = False
    reader: FrameReader | None = None
    timer: asyncio.TimerHandle | None = None


class StandbyPool:
    """At most one standby per local rank. All methods belong to the agent's loop; none blocks."""

    def __init__(
        self,
        config: StandbyConfig,
        plan: Callable[[], Sequence[Rank]],
        argv: Sequence[str],
        output: IdleOutput,
        fingerprint: Callable[[], Fingerprint],
        tell: Callable[..., None],
    ) -> None:
        self._config = config
        self._plan = plan
        self._argv = argv
        self._output = output
        self._fingerprint = fingerprint
        self._tell = tell
        self._standbys: dict[int, _Standby] = {}
        self._lesson: Lesson | None = Lesson(config.preload, {}) if config.preload else None
        self._excluded: set[str] = set(config.exclude)
        self._failures = 0
        self._off = config.mode is StandbyMode.OFF
        self._timer: asyncio.TimerHandle | None = None
        self._size_bytes = FIRST_GUESS_BYTES

    def learn(self, lesson: Lesson) -> None:
        """What the running generation has loaded by its first step."""
        self._lesson = Lesson((*lesson.names, *self._config.preload), lesson.environment)
        self.fill_soon()

    def fill_soon(self) -> None:
        """Training is under way: begin to fill the pool, once it has settled."""
        self.pause()
        if not self._off and self._lesson is not None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._fill)

    def pause(self) -> None:
        """The generation has failed: no new standby now, everything the machine has is for the recovery."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ready(self) -> int:
        """How many could become ranks at once."""
        return sum(standby.ready for standby in self._standbys.values())

    def pids(self) -> Collection[int]:
        """The processes that are no ranks."""
        return [standby.process.pid for standby in self._standbys.values()]

    def release(self, rank: Rank) -> WorkerProcess | None:
        """Turn the standby of this local rank into the rank; ``None`` when there is none that can.

        One that is still importing is ended: what it is at may never end, and nobody would know.
        """
        self.pause()
        standby = self._standbys.pop(rank.local_rank, None)
        if standby is None:
            return None
        if not standby.ready:
            self._drop(standby, "")
            return None
        if not standby.process.alive or standby.fingerprint != self._fingerprint():
            self._drop(standby, "stale: the script, the interpreter or installed packages have changed")
            return None
        if not _send(standby.connection, {"go": _order(rank)}):
            self._drop(standby, "did not take its order")
            return None
        self._forget(standby)
        self._output.promote(standby.token, rank)
        return standby.process

    def close(self) -> None:
        """End all of them. They are dead, and reaped, when this returns or a second later."""
        self.pause()
        self._off = True
        for standby in list(self._standbys.values()):
            self._drop(standby, "")
        self._standbys.clear()

    def _fill(self) -> None:
        """Start what is missing, as many at once as there are idle CPUs for."""
        self._timer = None
        ranks = self._plan()
        pace = choose_pace(len(ranks))
        starting = sum(not standby.ready for standby in self._standbys.values())
        for rank in ranks:
            if self._off or starting >= pace.at_once:
                return
            if rank.local_rank not in self._standbys and self._has_room(len(ranks)):
                self._start(rank, pace)
                starting += 1

    def _has_room(self, wanted: int) -> bool:
        if self._config.mode is StandbyMode.ON:
            return True
        missing = wanted - len(self._standbys)
        free, needed = available_bytes(), missing * self._size_bytes
        if free > 2 * needed:
            return True
        self._switch_off(f"memory is short: {free >> 20} MiB free, {missing} standbys need about {needed >> 20} MiB")
        return False

    def _start(self, rank: Rank, pace: Pace) -> None:
        lesson = self._lesson or Lesson((), {})
        ours, theirs = socket.socketpair()
        token = object()
        try:
            process = self._spawn(rank, theirs.fileno(), token)
        except SpawnError as error:
            ours.close()
            self._output.discard(token)
            self._failed(str(error))
            return
        finally:
            theirs.close()
        standby = _Standby(rank.local_rank, process, ours, token, self._fingerprint(), reader=FrameReader())
        self._standbys[rank.local_rank] = standby
        process.watch(lambda exited: self._on_exit(standby))
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._on_message, standby)
        standby.timer = loop.call_later(PRELOAD_TIMEOUT_S, self._on_hang, standby)
        request = {
            "preload": list(lesson.names),
            "environment": dict(lesson.environment),
            "pace": {"share": pace.share},
            "exclude": sorted(self._excluded),
            "cuda": self._config.cuda,
        }
        if not _send(ours, request):
            self._drop(standby, "did not take its list of modules")

    def _spawn(self, rank: Rank, connection_fd: int, token: Hashable) -> WorkerProcess:
        stdout, stderr = self._output.attach_idle(token)
        environment = {**rank.environment, "FTLAUNCH_STANDBY_FD": str(connection_fd)}
        try:
            return spawn(SpawnSpec(self._argv, environment, stdout, stderr, (*rank.pass_fds, connection_fd)))
        finally:
            for descriptor in (stdout, stderr):
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _on_message(self, standby: _Standby) -> None:
        try:
            data = standby.connection.recv(1 << 16)
            messages = standby.reader.feed(data) if standby.reader is not None else []
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            self._drop(standby, f"cannot be understood: {error}")
            return
        if not data:
            # Its exit follows and tells more.
            asyncio.get_running_loop().remove_reader(standby.connection)
        for message in messages:
            self._on_report(standby, message)

    def _on_report(self, standby: _Standby, message: Mapping[str, Any]) -> None:
        failed = message.get("failed")
        failed = failed if isinstance(failed, dict) else {}
        if "unfit" in message:
            named = message.get("exclude")
            unfit = [str(name) for name in (named if isinstance(named, list) and named else list(failed)[-1:])]
            self._excluded.update(unfit)
            self._drop(standby, f"{message['unfit']} ({', '.join(unfit[:5])}): not imported ahead any more")
            return
        standby.ready = True
        if standby.timer is not None:
            standby.timer.cancel()
        self._size_bytes = max(resident_bytes(standby.process.pid), 1 << 20)
        self._tell(
            "standby_ready",
            local_rank=standby.local_rank,
            pid=standby.process.pid,
            modules=message.get("ready"),
            failed=dict(list(failed.items())[:20]),
            **({"no_cuda_context": message["cuda"]} if message.get("cuda") else {}),
        )
        self._fill()

    def _on_exit(self, standby: _Standby) -> None:
        self._drop(standby, f"ended by itself with code {standby.process.exit_code}")

    def _on_hang(self, standby: _Standby) -> None:
        self._drop(standby, f"still importing after {PRELOAD_TIMEOUT_S:.0f} s")

    def _drop(self, standby: _Standby, reason: str) -> None:
        """Kill it and everything it may have started; reaped as soon as it is dead."""
        if self._standbys.get(standby.local_rank) is standby:
            del self._standbys[standby.local_rank]
        self._forget(standby)
        self._output.discard(standby.token)
        process = standby.process
        if process.alive:
            process.watch(lambda exited: exited.reap())
        process.signal_group(signal.SIGKILL)
        process.reap()
        if reason:
            self._failed(f"standby of local rank {standby.local_rank} {reason}")

    def _forget(self, standby: _Standby) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(standby.connection)
        standby.connection.close()
        if standby.timer is not None:
            standby.timer.cancel()

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._tell("standby_dropped", reason=reason)
        if self._failures >= MAX_FAILURES:
            self._switch_off(f"{self._failures} standbys failed, the last one: {reason}")
        elif self._timer is None and not self._off:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._fill)

    def _switch_off(self, reason: str) -> None:
        if not self._off:
            self._off = True
            self._tell("standby_off", reason=f"no standbys any more: {reason}", say=True)


def _order(rank: Rank) -> dict[str, Any]:
    return {
        "kind": rank.command[0],
        "target": rank.command[1],
        "args": list(rank.command[2:]),
        "environment": dict(rank.environment),
        "cwd": os.getcwd(),
    }


def _send(connection: socket.socket, message: dict[str, Any]) -> bool:
    """Send whole or not at all useful: the buffer is large enough for any list and environment."""
    try:
        connection.setblocking(False)
        data = encode(message)
        return connection.send(data) == len(data)
    except (OSError, FrameError):
        return False
