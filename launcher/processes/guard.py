"""The agent's side of the guardian: start it, keep it, dismiss it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

_RESPAWNS = 3
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Guard:
    """One guardian process. It sweeps what carries ``marker`` when the agent vanishes; see :mod:`.guardian`."""

    def __init__(self, marker: str, runtime_dir: str, page: int | None = None) -> None:
        """``page``: a descriptor of what :mod:`ftlaunch.heartbeat.flags` describes, with several nodes."""
        self.marker = marker
        self._page = page
        self._runtime_dir = runtime_dir
        self._popen: subprocess.Popen[bytes] | None = None
        self._started = 0

    @property
    def pid(self) -> int | None:
        """The guardian's pid, ``None`` when there is none."""
        return self._popen.pid if self._popen is not None else None

    def start(self) -> None:
        """Start it. Without a guardian the job still runs, so a failure to start one is only reported.

        Raises :class:`OSError`.
        """
        self._started += 1
        script = str(Path(__file__).with_name("guardian.py"))
        # The signal mask is inherited through exec (sigprocmask(2)): blocked from its first instruction on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
        try:
            self._popen = self._spawn(script)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _spawn(self, script: str) -> subprocess.Popen[bytes]:
        # No marker in its own environment: it must not find itself.
        page = () if self._page is None else (self._page,)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", script, self.marker, self._runtime_dir, *map(str, page)],
            pass_fds=page,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )

    def check(self) -> bool:
        """Called on SIGCHLD: replace a guardian that somebody killed. True when a new one was started."""
        if self._popen is None or self._popen.poll() is None or self._started > _RESPAWNS:
            return False
        self._close_pipe()
        self.start()
        return True

    def dismiss(self) -> None:
        """The agent ends in order and has left nothing behind: the guardian need not look."""
        if self._popen is None:
            return
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._popen.stdin.fileno(), b"done")
        self._close_pipe()
        # It exits within milliseconds; init reaps it if we are faster. Popen must not warn about that.
        if self._popen.poll() is None:
            self._popen.returncode = 0
        self._popen = None

    def _close_pipe(self) -> None:
        if self._popen is not None and self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
