"""Finding the agent of a running job, and asking it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ftlaunch.launcher.control import control_socket
from ftlaunch.launcher.ftctl._errors import NotFound, Refused
from ftlaunch.launcher.ftctl._runs import all_runs, find_run
from ftlaunch.launcher.host.proctree import read_entry
from ftlaunch.launcher.journal.rundir import is_running, read_run_file

run_option: Callable[[Any], Any] = click.option(
    "--run",
    "wanted",
    metavar="RUN",
    help="The run: its name, the beginning of it, or its directory. Default: the latest one that is running.",
)


def names_a_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """``wanted``: the run as the first argument, as elsewhere, or with ``--run``. Raises UsageError for two of them."""

    @click.argument("run", required=False)
    @run_option
    @functools.wraps(function)
    def call(run: str | None, wanted: str | None, **given: Any) -> Any:
        if run is not None and wanted is not None:
            raise click.UsageError(f"one run at a time: {run}, or --run {wanted}")
        return function(wanted=run if wanted is None else wanted, **given)

    decorated: Callable[..., Any] = call
    return decorated


@dataclass(frozen=True)
class LiveRun:
    """A running job. ``control`` is the path of its agent's socket."""

    path: Path
    control: str


def find_live(wanted: str | None, alone: bool = False) -> LiveRun:
    """The running job that is meant; with ``alone`` one must be named when several are running.

    Raises :class:`NotFound` for no such job, and for one that has ended or cannot be reached from here.
    """
    if wanted is not None:
        return _live(find_run(wanted))
    running = [run for run in all_runs() if is_running(run)]
    # Runs of other containers count as running until they say that they are not: those with a socket here go first.
    running = [run for run in running if _has_socket(run)] or running
    if not running:
        raise NotFound(
            "no job of yours is running here; a run with a --run-dir of its own must be named: ftctl status DIR, say"
        )
    if alone and len(running) > 1:
        some = ", ".join(run.name for run in running[-3:])
        raise NotFound(f"{len(running)} jobs are running ({some}): say which one with --run")
    return _live(max(running, key=_age_key))


def _age_key(run: Path) -> tuple[str, int]:
    """Names tell the second in which a run began; of those of one second the agents' own start times decide."""
    ticks = (read_run_file(run) or {}).get("starttime")
    return run.name[:15], ticks if isinstance(ticks, int) else 0


def _has_socket(run: Path) -> bool:
    return os.path.exists(str((read_run_file(run) or {}).get("control") or ""))


def _live(run: Path) -> LiveRun:
    facts = read_run_file(run) or {}
    if not is_running(run):
        ended = f"has ended with code {facts['exit_code']}" if "exit_code" in facts else "is not running any more"
        raise NotFound(f"run {run.name} {ended}; see ftctl explain {run.name}")
    here = os.uname().nodename
    if facts.get("host") not in (None, here):
        raise NotFound(f"run {run.name} belongs to host {facts['host']}: ask there, this is {here}")
    socket = facts.get("control")
    if not isinstance(socket, str) or not socket:
        raise NotFound(f"run {run.name} has no control socket: its agent found no directory to make one in")
    if (pid := _stopped(facts)) is not None:
        raise Refused(f"the agent of {run.name} is stopped, and answers nobody: kill -CONT {pid} lets it go on")
    return LiveRun(run, socket)


def _stopped(facts: Mapping[str, Any]) -> int | None:
    """The agent's pid if it was stopped by a signal; one that is traced stops and goes on all the time."""
    pid = facts.get("pid")
    entry = read_entry(pid) if isinstance(pid, int) else None
    stopped = entry is not None and entry.state == "T" and entry.start_ticks == facts.get("starttime")
    return pid if stopped else None


def ask(live: LiveRun, command: str, timeout_s: float = 10.0, **arguments: Any) -> Any:
    """Ask the agent. Raises :class:`Refused` with its answer, or when it does not answer."""
    try:
        return control_socket.ask(live.control, command, timeout_s, **arguments)
    except control_socket.RequestError as error:
        raise Refused(str(error)) from None
    except TimeoutError:
        raise Refused(f"the agent of {live.path.name} did not answer within {timeout_s:g} s") from None
    except PermissionError:
        raise Refused(f"the agent of {live.path.name} belongs to another user") from None
    except OSError as error:
        raise Refused(f"the agent of {live.path.name} cannot be reached: {error.strerror or error}") from None
    except ValueError:
        raise Refused(f"the agent of {live.path.name} gave an answer that is cut off") from None
