"""The reader of all rank output: one thread, one epoll, whatever the agent's own loop is doing.

A worker writes into pipes; the thread takes chunks out and hands each to its :class:`.stream.RankStream`. A rank is
held up only as long as its log file's disk is, and for a moment by a busy console (:data:`.sink.PATIENCE_S`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ftlaunch.launcher import clock
from ftlaunch.launcher.config import LogConfig, Stream
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.output.console import Console
from ftlaunch.launcher.output.files import LogFile, LogLayout
from ftlaunch.launcher.output.ring import Ring
from ftlaunch.launcher.output.route import line_prefix, shows_on_console
from ftlaunch.launcher.output.stream import Outlets, RankStream
from ftlaunch.launcher.output.threads import start_quiet_thread

_log = logging.getLogger(__name__)

CHUNK = 65536
IDLE_S = 0.1
_PIPE_BYTES = 1 << 20
_LARGE_PIPES = 32
"""An unprivileged user may have 64 MiB in pipes (pipe-user-pages-soft, pipe(7)); beyond that new ones get two pages."""
_HELD_BYTES = 65536
_KEPT_GENERATIONS = 2
_STREAMS = (Stream.OUT, Stream.ERR)


@dataclass(frozen=True)
class WorkerPipes:
    """The write ends for one worker, close-on-exec. Close them here as soon as it was spawned."""

    stdout_fd: int
    stderr_fd: int

    def close(self) -> None:
        """Close both; the worker keeps its own."""
        os.close(self.stdout_fd)
        os.close(self.stderr_fd)


class _Pipe:
    """One read end. ``stream`` is ``None`` as long as its worker has no rank; then ``held`` keeps what it says."""

    def __init__(self, fd: int, which: Stream, token: Hashable) -> None:
        self.fd = fd
        self.which = which
        self.token = token
        self.generation: int | None = None
        self.stream: RankStream | None = None
        self.held = bytearray()
        self.flush_at: float | None = None
        self.ended = False


class OutputPump:
    """Public methods belong to the agent's main thread; none of them waits for the reader, except :meth:`close`."""

    def __init__(self, console: Console, config: LogConfig, layout: LogLayout) -> None:
        self._console = console
        self._console.hint = str(layout.root or "")
        self._config = config
        self._layout = layout
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._rings: dict[tuple[int, int, Stream], Ring] = {}
        self._filtered: dict[tuple[int, Stream], LogFile] = {}
        self._pipes: dict[int, _Pipe] = {}
        self._complained: set[int | None] = set()
        self._thread: threading.Thread | None = None
        self._closing = False

    def attach(self, generation: int, rank: int, local_rank: int, role: str) -> WorkerPipes:
        """Make the pipes of a rank that is about to be spawned. Raises :class:`SpawnError`."""
        token = (generation, local_rank)
        pipes = self.attach_idle(token)
        self.promote(token, generation, rank, local_rank, role)
        return pipes

    def attach_idle(self, token: Hashable) -> WorkerPipes:
        """Make the pipes of a worker that has no rank yet. Raises :class:`SpawnError`.

        What it writes is held back, the last 64 KiB of each stream, until it is promoted or discarded.
        """
        pairs: list[tuple[int, int]] = []
        try:
            for _ in _STREAMS:
                pairs.append(os.pipe2(os.O_CLOEXEC))
        except OSError as error:
            for fd in (fd for pair in pairs for fd in pair):
                os.close(fd)
            raise SpawnError(f"cannot make a pipe for rank output: {error.strerror} (see ulimit -n)") from None
        for which, (read_end, _) in zip(_STREAMS, pairs, strict=True):
            os.set_blocking(read_end, False)
            self._enlarge(read_end)
            self._submit(partial(self._add, _Pipe(read_end, which, token)))
        return WorkerPipes(pairs[0][1], pairs[1][1])

    def promote(self, token: Hashable, generation: int, rank: int, local_rank: int, role: str) -> None:
        """The worker has become a rank: what it wrote so far, and all that follows, is that rank's output."""
        error_file = self._layout.error_file(generation, rank, local_rank)
        if error_file is not None:
            with contextlib.suppress(OSError):
                error_file.parent.mkdir(parents=True, exist_ok=True)
        for key in [key for key in self._rings if key[0] <= generation - _KEPT_GENERATIONS]:
            del self._rings[key]
        for which in _STREAMS:
            self._rings[generation, local_rank, which] = Ring()
        stale = [self._filtered.pop(key) for key in list(self._filtered) if key[0] < generation]
        streams = {which: self._make_stream(generation, rank, local_rank, role, which) for which in _STREAMS}
        self._submit(partial(self._promote, token, generation, streams, stale))

    def discard(self, token: Hashable) -> None:
        """The worker will never become a rank: forget what it wrote and stop reading."""
        self._submit(partial(self._discard, token))

    def tail(self, generation: int, local_rank: int, stream: Stream) -> list[bytes]:
        """The last 50 lines of ``Stream.OUT`` or ``Stream.ERR`` of a rank; kept for two generations."""
        ring = self._rings.get((generation, local_rank, stream))
        return ring.lines() if ring is not None else []

    async def drained(self, generation: int, timeout_s: float = 1.0) -> bool:
        """Wait until all that dead ranks of a generation wrote has been read; False after ``timeout_s``.

        A pipe that a grandchild still holds open does not delay this: what its rank wrote was in the pipe before the
        rank's death was known, and is read now.
        """
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._submit(partial(self._catch_up, generation, partial(_resolve, loop, done)))
        finished, _ = await asyncio.wait({done}, timeout=timeout_s)
        return bool(finished)

    def close(self, timeout_s: float = 1.0) -> bool:
        """Read what is left in the pipes, finish lines and files, end the thread; False after ``timeout_s``.

        The console is left open, so that the failure report can follow.
        """
        if self._closing:
            return self._thread is None or not self._thread.is_alive()
        if self._thread is None:
            self._release()
            return True
        self._submit(self._finish)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _enlarge(self, read_end: int) -> None:
        if len(self._pipes) + len(self._commands) < _LARGE_PIPES:
            with contextlib.suppress(OSError):
                fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def _make_stream(self, generation: int, rank: int, local_rank: int, role: str, which: Stream) -> RankStream:
        config = self._config
        prefix = line_prefix(config.prefix_template, role, rank, local_rank)
        path = self._layout.stream_file(generation, rank, local_rank, which)
        show = None
        if shows_on_console(config, local_rank, which):
            show = partial(self._console.show, which is Stream.ERR, (generation, local_rank, which), prefix)
        patterns = config.stdout_filters if which is Stream.OUT else config.stderr_filters
        return RankStream(
            Outlets(
                self._rings[generation, local_rank, which],
                file=LogFile(path, config.max_file_bytes, self._complain) if path is not None else None,
                show=show,
                filtered=self._shared_file(generation, which) if patterns else None,
                patterns=tuple(os.fsencode(pattern) for pattern in patterns),
                prefix=prefix,
            )
        )

    def _shared_file(self, generation: int, which: Stream) -> LogFile | None:
        path = self._layout.filtered_file(generation, which)
        if path is not None and (generation, which) not in self._filtered:
            self._filtered[generation, which] = LogFile(path, self._config.max_file_bytes, self._complain)
        return self._filtered.get((generation, which))

    def _submit(self, command: Callable[[], None]) -> None:
        if self._closing:
            return
        self._commands.append(command)
        if self._thread is None:
            self._epoll.register(self._wake_fd, select.EPOLLIN)
            self._thread = start_quiet_thread(self._run, "ftlaunch-output")
        with contextlib.suppress(OSError):
            # EBADF: the thread has just finished, so there is nobody left to tell.
            os.eventfd_write(self._wake_fd, 1)

    # What follows runs in the reader thread.

    def _run(self) -> None:
        while not self._closing:
            for fd, _ in self._epoll.poll(self._timeout_s()):
                if fd == self._wake_fd:
                    self._obey()
                elif fd in self._pipes:
                    self._read(self._pipes[fd])
            self._flush_idle()
        self._release()

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._commands:
            self._guard(self._commands.popleft())

    def _timeout_s(self) -> float | None:
        waiting = [pipe.flush_at for pipe in self._pipes.values() if pipe.flush_at is not None]
        return max(0.0, min(waiting) - clock.monotonic()) if waiting else None

    def _flush_idle(self) -> None:
        now = clock.monotonic()
        for pipe in self._pipes.values():
            if pipe.flush_at is not None and now >= pipe.flush_at:
                pipe.flush_at = None
                if pipe.stream is not None:
                    self._guard(pipe.stream.idle)

    def _add(self, pipe: _Pipe) -> None:
        self._pipes[pipe.fd] = pipe
        self._epoll.register(pipe.fd, select.EPOLLIN)

    def _promote(
        self, token: Hashable, generation: int, streams: dict[Stream, RankStream], stale: list[LogFile]
    ) -> None:
        for file in stale:
            file.close()
        for stream in streams.values():
            stream.open()
        for pipe in [pipe for pipe in self._pipes.values() if pipe.token == token]:
            pipe.generation, pipe.stream = generation, streams[pipe.which]
            held, pipe.held = bytes(pipe.held), bytearray()
            if held:
                self._deliver(pipe, held)
            if pipe.ended:
                self._drop(pipe)

    def _discard(self, token: Hashable) -> None:
        for pipe in [pipe for pipe in self._pipes.values() if pipe.token == token and pipe.stream is None]:
            self._drop(pipe)

    def _read(self, pipe: _Pipe) -> int:
        """Read one chunk; 0 when there was nothing or the stream has ended."""
        try:
            data = os.read(pipe.fd, CHUNK)
        except BlockingIOError:
            return 0
        if data:
            self._deliver(pipe, data)
        elif pipe.stream is not None:
            self._drop(pipe)
        elif not pipe.ended:
            pipe.ended = True
            self._epoll.unregister(pipe.fd)
        return len(data)

    def _deliver(self, pipe: _Pipe, data: bytes) -> None:
        if pipe.stream is None:
            pipe.held += data
            del pipe.held[:-_HELD_BYTES]
            return
        self._guard(partial(pipe.stream.take, data))
        pipe.flush_at = clock.monotonic() + IDLE_S if pipe.stream.unfinished else None

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001
            # The top of this thread: were it to end, every rank would block on a full pipe.
            _log.exception("some rank output may be missing: a defect of ftlaunch")

    def _drop(self, pipe: _Pipe) -> None:
        del self._pipes[pipe.fd]
        if pipe.stream is not None:
            self._guard(pipe.stream.end)
        if not pipe.ended:
            # Not left to close(): a child between vfork and exec still has the descriptor, and epoll would go on.
            self._epoll.unregister(pipe.fd)
        os.close(pipe.fd)

    def _catch_up(self, generation: int | None, done: Callable[[], None]) -> None:
        for pipe in [pipe for pipe in self._pipes.values() if generation in (None, pipe.generation)]:
            # Not to EOF, and not until it is empty: a grandchild may write for ever. The whole pipe once is enough.
            left = fcntl.fcntl(pipe.fd, fcntl.F_GETPIPE_SZ)
            while left > 0 and (size := self._read(pipe)):
                left -= size
            if pipe.stream is not None and pipe.fd in self._pipes:
                self._guard(pipe.stream.idle)
        done()

    def _finish(self) -> None:
        self._catch_up(None, lambda: None)
        for pipe in list(self._pipes.values()):
            self._drop(pipe)
        self._closing = True

    def _release(self) -> None:
        for file in self._filtered.values():
            file.close()
        self._closing = True
        self._epoll.close()
        os.close(self._wake_fd)

    def _complain(self, error: OSError, path: Path) -> None:
        """Once per kind of error, not once per rank."""
        if error.errno not in self._complained:
            self._complained.add(error.errno)
            self._console.say(
                f"[ftlaunch] cannot write {path}: {error.strerror}; rank output goes on at the console, "
                "and in the log files as far as they can be written"
            )


def _resolve(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):
        # RuntimeError: the loop was closed meanwhile, nobody waits any more.
        loop.call_soon_threadsafe(_set, done)


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
