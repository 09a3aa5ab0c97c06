"""Threads that never run a signal handler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def start_quiet_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread with all signals blocked, so that the kernel delivers every signal to the main thread.

    The mask is inherited (pthread_sigmask(3)): blocking before the start leaves no moment in which the thread could be
    chosen. Blocked SIGTTOU also lets it write to the terminal from the background (termios(3), TOSTOP).
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
