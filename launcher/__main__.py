"""``ftlaunch``: parse, run, exit with the job's code. Same as ``python -m ftlaunch.launcher``."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from ftlaunch.launcher.processes.signals import EarlySignals

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN)
_UNHEALTHY = 75
"""As :class:`~ftlaunch.launcher.exit_codes.ExitCode`."""


def main() -> None:
    """Entry point of the console script."""
    early = EarlySignals()
    early.install()
    # After the handlers: these imports take longer than a container needs to be told to stop.
    from ftlaunch.launcher.errors import FtlaunchError

    complaint = ""
    try:
        code = _run(early)
    except FtlaunchError as error:
        complaint = f"ftlaunch: {error}\n"
        code = int(error.exit_code)
        _leave_reason(complaint)
    except (OSError, MemoryError) as error:
        # What the whole process runs short of can be refused anywhere; ranks have ended with what held them.
        if isinstance(error, OSError) and error.errno not in _SHORTAGES:
            raise
        complaint = f"ftlaunch: this node has run short of something: {str(error) or 'memory'}\n"
        code = _UNHEALTHY
    _say_last(complaint)
    # Nothing is left to do; the interpreter's own teardown would only take time.
    os._exit(code)


def _run(early: EarlySignals) -> int:
    from ftlaunch.launcher.host.ulimits import require_room

    # Before what would fail for it in the middle of an import.
    require_room()
    from ftlaunch.launcher.output.console import ensure_standard_fds

    # Before anything else is opened: it must not get the number of a standard stream that is closed.
    ensure_standard_fds()
    from ftlaunch.launcher.cli import command_line

    parsed = command_line.parse(sys.argv[1:], os.environ)
    from ftlaunch.launcher.job import run_job

    return run_job(parsed, early)


def _leave_reason(complaint: str) -> None:
    """Where Kubernetes looks: without settings no other place is known."""
    # A process that may open no file can import nothing.
    with contextlib.suppress(ImportError, OSError):
        from ftlaunch.launcher.health.termination_log import choose_path, write_termination_log

        write_termination_log(choose_path(None), complaint)


def _say_last(complaint: str) -> None:
    """Empty the buffers. A console that is closed (``>&-``), full or gone changes no exit code."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, complaint)):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.write(text)
                stream.flush()


if __name__ == "__main__":
    main()
