"""Signals only wake the loop; what they mean is decided like any other event."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable

DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class EarlySignals:
    """Catches what arrives before the loop runs. Installed first thing in ``main``.

    As PID 1 a process without handlers ignores SIGTERM (pid_namespaces(7)), so a container that is stopped while we
    are still importing would wait for its whole grace period.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        # A signal that is ignored when we start stays ignored: nohup and shell background jobs rely on it.
        self.wanted = tuple(s for s in DEFAULT_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN)

    def install(self) -> None:
        """Start to collect."""
        for signum in self.wanted:
            signal.signal(signum, self._note)
        # Whoever started us may have had them blocked: the mask is inherited through exec (sigprocmask(2)).
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*self.wanted, signal.SIGCHLD})

    def _note(self, signum: int, frame: object) -> None:
        self.received.append(signum)


def detach(loop: asyncio.AbstractEventLoop, signals: Iterable[int]) -> None:
    """The job is over, and what arrives now comes too late to matter.

    Before the loop closes: it closes its wake-up pipe before it takes its handlers back, and a signal in between would
    have the interpreter complain.
    """
    for signum in signals:
        if loop.remove_signal_handler(signum) and signum != signal.SIGCHLD:
            signal.signal(signum, signal.SIG_IGN)


def attach(loop: asyncio.AbstractEventLoop, signals: Iterable[int], on_signal: Callable[[int], None]) -> None:
    """Deliver these signals to ``on_signal`` from the loop, except those ignored at start."""
    wanted = [signum for signum in signals if signal.getsignal(signum) is not signal.SIG_IGN]
    for signum in wanted:
        loop.add_signal_handler(signum, on_signal, signum)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
