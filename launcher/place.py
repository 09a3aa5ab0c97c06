"""Where a job leaves its traces: the run directory, the logs of its ranks, its events."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ftlaunch.launcher.config import Config
from ftlaunch.launcher.journal.records import EventLog
from ftlaunch.launcher.journal.rundir import RunDir, open_run_dir
from ftlaunch.launcher.output.files import LogLayout, choose_layout
from ftlaunch.launcher.say import Say


@dataclass(frozen=True)
class Place:
    """Where a job leaves its traces."""

    run: RunDir | None
    layout: LogLayout
    events: EventLog


def open_place(config: Config, say: Say) -> Place:
    """Make the run directory and choose the log layout. Raises :class:`UsageError` for what the user named."""
    job = config.rendezvous.job_id or os.path.basename(config.command.target)
    run, problem = open_run_dir(config.logs.run_dir, config.environment, job)
    if problem:
        say.warning(problem)
    layout = choose_layout(config.logs.log_dir, run.path if run else None, config.rendezvous.job_id)
    events = EventLog(run.events if run else None, say.warning)
    if config.logs.event_log_handler == "console":
        from ftlaunch.launcher.history.event_line import one_line

        events.observers.append(lambda event: say.notice(one_line(event)))
    return Place(run, layout, events)
