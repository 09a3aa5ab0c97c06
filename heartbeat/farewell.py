"""Ends a failed rank as soon as its own exit handlers have run: everybody waits for its end, nobody for its teardown.

Threads are joined, ``atexit`` handlers called and files flushed as always; what is skipped is the interpreter's taking
apart of all modules, which takes a second with torch loaded and leaves nothing behind that anyone could see.
"""

from __future__ import annotations

import atexit
import os
import stat
import sys
from _io import _IOBase

from ftlaunch.heartbeat.harmless import Harmless

_ACCESS_MODE = 3
_arranged = False
_expected: tuple[int, int] | None = None


def arrange() -> None:
    """Register before any handler of the script, so that ours is called after all of them. Works once."""
    global _arranged
    if not _arranged:
        _arranged = True
        atexit.register(_leave)


def expect(exit_code: int) -> None:
    """The process has failed and will end with this code."""
    global _expected
    _expected = (os.getpid(), exit_code)


def _leave() -> None:
    # A forked child inherits the handler, but not the failure.
    if _expected is None or _expected[0] != os.getpid():
        return
    if _has_open_files():
        _flush_all()
    for stream in (sys.stdout, sys.stderr):
        with Harmless():
            stream.flush()
    os._exit(_expected[1])


def _has_open_files() -> bool:
    """Whether a regular file is open for writing: only then is it worth to look for buffers (30 ms with torch)."""
    with Harmless():
        for name in os.listdir("/proc/self/fd"):
            if _is_written_file(name):
                return True
    return False


def _is_written_file(fd: str) -> bool:
    try:
        if int(fd) <= 2 or not stat.S_ISREG(os.stat(f"/proc/self/fd/{fd}").st_mode):
            return False
        with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
            flags = next(line for line in info if line.startswith(b"flags:"))
    except (OSError, StopIteration):
        return False
    return int(flags.split()[1], 8) & _ACCESS_MODE != os.O_RDONLY


def _flush_all() -> None:
    """What closing every file object would write."""
    import gc

    for found in gc.get_objects():
        # Not isinstance(): it asks the object, and such of torch warn about themselves when asked.
        if issubclass(type(found), _IOBase):
            with Harmless():
                if not found.closed:
                    found.flush()
