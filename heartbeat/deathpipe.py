"""A worker dies with its agent: by the kernel, without a thread, a poll or a signal handler.

The agent holds the only write end of a pipe. Its read end is armed to send SIGKILL to this process when the write end
closes (``F_SETSIG``, fcntl(2)). That survives exec, and works when the agent is killed with SIGKILL. The parent-death
signal (prctl(2)) is the second line, for a script that closes descriptors it does not know.
"""

from __future__ import annotations

import fcntl
import os
from _signal import SIGKILL  # type: ignore[import-not-found] # signal itself would import enum
from select import POLLHUP, POLLIN, poll

from ftlaunch.heartbeat.descriptors import high_descriptor

_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10


def arm(fd: int | None, agent_pid: int | None, *, through_exec: bool = False) -> int | None:
    """Arm both lines of defence; kills this process at once when the agent is gone already.

    Returns the descriptor that must stay open (with ``through_exec`` it is inheritable), None without a pipe.
    """
    set_parent_death_signal()
    if fd is None:
        _die_without(agent_pid)
        return None
    watched = _reopen(fd)
    try:
        fcntl.fcntl(watched, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(watched, _F_SETSIG, SIGKILL)
        fcntl.fcntl(watched, fcntl.F_SETFL, fcntl.fcntl(watched, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        # A kernel without it (some sandboxes): the parent-death signal and the agent's guardian are left.
        _die_without(agent_pid)
    # Asked of the inherited descriptor: a pipe opened anew does not report writers that went before.
    state = poll()
    state.register(fd, POLLIN | POLLHUP)
    if state.poll(0):
        os.kill(os.getpid(), SIGKILL)
    if watched != fd:
        os.close(fd)
    return high_descriptor(watched, inheritable=through_exec)


def _reopen(fd: int) -> int:
    """Open the pipe again: owner and signal belong to the open file, which ranks may share (fcntl(2))."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return fd


def _die_without(agent_pid: int | None) -> None:
    if agent_pid is None or os.getppid() == agent_pid:
        return
    try:
        os.kill(agent_pid, 0)
    except ProcessLookupError:
        os.kill(os.getpid(), SIGKILL)
    except OSError:
        pass


def set_parent_death_signal() -> None:
    """``prctl(PR_SET_PDEATHSIG, SIGKILL)``; does nothing where libc cannot be called."""
    call_libc("prctl", _PR_SET_PDEATHSIG, int(SIGKILL), 0, 0, 0)


def call_libc(name: str, *arguments: int) -> int | None:
    """Call a libc function with int arguments; None when it cannot be called.

    Through the C half of ctypes: the Python half costs 2 ms and imports modules that a script may want to shadow.
    """
    try:
        import _ctypes

        function = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)  # type: ignore[arg-type] # None: the program itself
        return int(_ctypes.call_function(function, arguments))
    except (ImportError, AttributeError, OSError, TypeError):
        return None
