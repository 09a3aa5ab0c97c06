"""Children of the agent that belong to no generation: the driver's helper, probes, health checks, looks at checkpoints.

Whoever sweeps or reaps by descent must leave :data:`PIDS` alone: these are waited for here, each with a deadline. A
child that can't even be killed (uninterruptible sleep on a dead mount) is left behind, and reaped whenever it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.host import proctree

PIDS: set[int] = set()
"""Pids of all bystanders that are not reaped yet."""

TAIL_BYTES = 8192
_KILLED_WITHIN_S = 1.0


class Bystander:
    """One child with a session of its own. Made by :func:`start`; all methods run on the event loop."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int) -> None:
        self.pid = popen.pid
        self.stdin = -1 if popen.stdin is None else popen.stdin.fileno()
        self.stdout = -1 if popen.stdout is None else popen.stdout.fileno()
        """Descriptors of our ends of its pipes."""
        self.exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """Done once it was reaped: its code, negative for a signal, ``None`` if somebody else took it."""
        self._popen = popen
        self._pidfd = pidfd

    def watch(self) -> None:
        """Reap it as soon as it ends."""
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def kill(self) -> None:
        """SIGKILL every process of its session. Nothing once it was reaped."""
        if self.pid not in PIDS:
            return
        self._kill_group()
        for entry in proctree.read_table():
            # A shell with job control gives its children groups of their own.
            if entry.session == self.pid and entry.pid != self.pid:
                with contextlib.suppress(OSError):
                    os.kill(entry.pid, signal.SIGKILL)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within the time."""
        await asyncio.wait([self.exited], timeout=timeout_s)
        return self.exited.done()

    def close(self) -> None:
        """Close our ends of its pipes."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        # Its pid is still pinned: whatever it left in its group goes with it.
        self._kill_group()
        code: int | None = None
        with contextlib.suppress(ChildProcessError):
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
            if result is not None:
                code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        os.close(self._pidfd)
        PIDS.discard(self.pid)
        # Popen would try to reap it again, and warn.
        self._popen.returncode = 0 if code is None else code
        if not self.exited.done():
            self.exited.set_result(code)


def start(argv: Sequence[str], environment: Mapping[str, str], stdin: bool = False, merge: bool = False) -> Bystander:
    """Start one with a pipe from its stdout, and one to its stdin if asked for; ``merge`` adds its stderr.

    Raises :class:`SpawnError`.
    """
    try:
        popen = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpawnError(f"cannot start {argv[0]}: {reason}") from None
    PIDS.add(popen.pid)
    bystander = Bystander(popen, os.pidfd_open(popen.pid))
    bystander.watch()
    return bystander


class Output:
    """What a bystander writes, read as it comes."""

    def __init__(self, descriptor: int, on_bytes: Callable[[bytes], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._descriptor = descriptor
        self._on_bytes = on_bytes

    def watch(self) -> None:
        """Read from now on, never blocking."""
        os.set_blocking(self._descriptor, False)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def stop(self) -> None:
        """Read what is there, then no more."""
        while not self.ended.done() and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        try:
            chunk = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if chunk:
            self._on_bytes(chunk)
        else:
            self._end()
        return bool(chunk)

    def _end(self) -> None:
        if not self.ended.done():
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self.ended.set_result(None)


@dataclass(frozen=True)
class Finished:
    """How a bounded command ended. ``tail``: the last of its output. ``exit_code`` is ``None`` when it timed out."""

    exit_code: int | None
    tail: bytes
    timed_out: bool = False


async def run_bounded(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    merge: bool = False,
    keep_bytes: int = TAIL_BYTES,
) -> Finished:
    """Run a command to its end, for at most ``timeout_s``, then kill its whole session. Raises :class:`SpawnError`.

    Returns within about a second of the deadline even when it can't be killed. Children that it left in its session
    end with it: nobody waits for them, nor for whoever still holds its output.
    """
    child = start(argv, environment, merge=merge)
    tail = bytearray()

    def keep(chunk: bytes) -> None:
        tail.extend(chunk)
        del tail[:-keep_bytes]

    output = Output(child.stdout, keep)
    output.watch()
    try:
        in_time = await child.wait(timeout_s)
        if not in_time:
            child.kill()
            await child.wait(_KILLED_WITHIN_S)
    finally:
        child.kill()
        output.stop()
        child.close()
    return Finished(child.exited.result() if in_time else None, bytes(tail), timed_out=not in_time)
