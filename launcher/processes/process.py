"""A worker is a pidfd: spawned by exec, watched by the event loop, signalled through the descriptor, reaped once.

A worker that has exited stays a zombie until :meth:`WorkerProcess.reap`: as long as it is not reaped, the kernel gives
its pid to nobody else, so the process group of the same number is still ours to kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.launcher import clock
from ftlaunch.launcher.errors import SpawnError


@dataclass(frozen=True)
class SpawnSpec:
    """What to execute and with which descriptors. ``None`` inherits the agent's own stream."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    stdout: int | None = None
    stderr: int | None = None
    pass_fds: tuple[int, ...] = ()


class WorkerProcess:
    """One child with a session of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], pidfd: int) -> None:
        self.pid = popen.pid
        self.exit_code: int | None = None
        self.exited_at: float | None = None
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._popen = popen
        self._pidfd = pidfd
        self._reaped = False

    def watch(self, on_exit: Callable[[WorkerProcess], None]) -> None:
        """Have ``on_exit`` called from the loop as soon as the kernel reports the death."""
        asyncio.get_running_loop().add_reader(self._pidfd, self._noticed, on_exit)

    @property
    def alive(self) -> bool:
        """False once the death was noticed."""
        return self.exit_code is None

    def signal(self, signum: int) -> None:
        """Signal the leader only. Harmless when it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._pidfd, signum)

    def signal_group(self, signum: int) -> None:
        """Signal whatever is left of the process group, also when the leader is gone. Nothing once it was reaped."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    def reap(self) -> None:
        """Let the kernel forget the process. Only after its death was noticed and its group was killed."""
        if self._reaped or self.exit_code is None:
            return
        self._reaped = True
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        # Popen would try to reap it again, and warn.
        self._popen.returncode = self.exit_code

    def _noticed(self, on_exit: Callable[[WorkerProcess], None]) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.exited_at = clock.monotonic()
        self.exit_code = _peek_exit_code(self._pidfd)
        if not self.exited.done():
            self.exited.set_result(self.exit_code)
        on_exit(self)


def spawn(spec: SpawnSpec) -> WorkerProcess:
    """Start a child by vfork and exec; about 1 ms. Must be called from the main thread of a running loop.

    From the main thread, because a parent-death signal is tied to the *thread* that forked (prctl(2)).

    Raises :class:`SpawnError` with one line that says what could not be executed and why.
    """
    try:
        popen = subprocess.Popen(
            spec.argv,
            env=spec.environment,
            stdout=spec.stdout,
            stderr=spec.stderr,
            pass_fds=spec.pass_fds,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpawnError(f"cannot start {spec.argv[0]}: {reason}") from None
    try:
        # The child is not reaped yet, so this pid cannot be anybody else's.
        return WorkerProcess(popen, os.pidfd_open(popen.pid))
    except OSError as error:
        popen.kill()
        popen.wait()
        raise SpawnError(f"cannot watch {spec.argv[0]}: {error.strerror}") from None


def _peek_exit_code(pidfd: int) -> int:
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Somebody else's SIGCHLD handling took it: the death is sure, its code is lost.
        return -signal.SIGKILL
    if result is None:
        return -signal.SIGKILL
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
