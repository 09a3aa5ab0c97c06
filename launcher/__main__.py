"""``ftlaunch``: parse, run, exit with the job's code. Same as ``python -m ftlaunch.launcher``."""

from __future__ import annotations

import contextlib
import os
import sys

from ftlaunch.launcher.signals import EarlySignals


def main() -> None:
    """Entry point of the console script."""
    early = EarlySignals()
    early.install()
    # After the handlers: these imports take longer than a container needs to be told to stop.
    from ftlaunch.launcher.output.console import ensure_standard_fds

    # Before anything else is opened: it must not get the number of a standard stream that is closed.
    ensure_standard_fds()
    from ftlaunch.launcher.errors import FtlaunchError

    complaint = ""
    try:
        from ftlaunch.launcher import cli

        parsed = cli.parse(sys.argv[1:], os.environ)
        from ftlaunch.launcher.job import run_job

        code = run_job(parsed, early)
    except FtlaunchError as error:
        complaint = f"ftlaunch: {error}\n"
        code = int(error.exit_code)
    _say_last(complaint)
    # Nothing is left to do; the interpreter's own teardown would only take time.
    os._exit(code)


def _say_last(complaint: str) -> None:
    """Empty the buffers. A console that is closed (``>&-``), full or gone changes no exit code."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, complaint)):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.write(text)
                stream.flush()


if __name__ == "__main__":
    main()
