"""The user's own health check: any shell command; exit code 0 is healthy, its last line is the reason."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.launcher.exit_codes import signal_name
from ftlaunch.launcher.health.result import Healthy, Result, Unhealthy
from ftlaunch.launcher.processes.bystanders import Finished, run_bounded

DEFAULT_TIMEOUT_S = 60.0
_CHECK = "health check"
_MAX_CHARACTERS = 300


async def check_command(command: str, environment: Mapping[str, str], timeout_s: float = DEFAULT_TIMEOUT_S) -> Result:
    """Run it with ``/bin/sh -c`` in a session of its own, which is killed as a whole when time is up.

    Raises :class:`~ftlaunch.launcher.errors.SpawnError`.
    """
    return judge_command(await run_bounded(["/bin/sh", "-c", command], environment, timeout_s, merge=True), timeout_s)


def judge_command(finished: Finished, timeout_s: float) -> Result:
    """Judge how it ended. Pure."""
    said = last_line(finished.tail)
    if finished.timed_out:
        return Unhealthy(_CHECK, f"did not end within {timeout_s:g} s" + (f": {said}" if said else ""))
    code = finished.exit_code
    if code == 0:
        return Healthy(_CHECK)
    if code is None:
        ending = "its exit code was lost"
    else:
        ending = f"ended by {signal_name(-code)}" if code < 0 else f"exit code {code}"
    return Unhealthy(_CHECK, f"{said} ({ending})" if said else ending)


def last_line(output: bytes) -> str:
    """The last line that is not empty, printable and short enough for a reason."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    line = "".join(character if character.isprintable() else " " for character in lines[-1]) if lines else ""
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - 1]}…"
