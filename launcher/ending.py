"""How a failed job ends for its user: the report, and the copy of the root cause for our own parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftlaunch.launcher import actions as do
from ftlaunch.launcher import clock, errorfile
from ftlaunch.launcher import report as failure_report
from ftlaunch.launcher.config import Stream
from ftlaunch.launcher.narrator import Narrator
from ftlaunch.launcher.state import State

if TYPE_CHECKING:
    from ftlaunch.launcher.job import Job


def report(job: Job, end: do.Exit, state: State, narrator: Narrator) -> tuple[int, str]:
    """The exit code (as torchrun's if asked for) and the text to print last; a copy goes to the run directory."""
    narrator.settle()
    incident = narrator.incident
    if incident is None:
        return end.exit_code, ""
    cause, layout, run = incident.cause, job.place.layout, job.place.run
    rank, local_rank = cause.rank, cause.local_rank
    own_file, tail = None, []
    if rank is not None and local_rank is not None:
        own_file = errorfile.read_error_file(layout.error_file(incident.generation, rank, local_rank))
        tail = job.pump.tail(incident.generation, local_rank, Stream.ERR)
    code = 1 if job.config.torchrun_exit_codes else end.exit_code
    text = failure_report.render(
        failure_report.FailureReport(
            command=job.config.command.target,
            job_id=state.world.run_id if state.world is not None else "",
            generation=incident.generation,
            restarts=max(0, len(state.history) - 1),
            cause=cause,
            exit_code=code,
            exit_reason=end.reason,
            error_file=own_file,
            stderr_tail=tail,
            ends=incident.consequences,
            logs=str(layout.generation_dir(incident.generation) or ""),
            records=str(run.path) if run is not None else "",
            diagnosis=incident.diagnosis,
            hints=[incident.diagnosis.hint] if incident.diagnosis is not None else [],
        )
    )
    if run is not None:
        try:
            # An exception's text may hold lone surrogates, which no encoder takes.
            run.failure_report.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            job.say.warning(f"cannot write {run.failure_report}: {error.strerror}")
    if job.config.error_file:
        problem = errorfile.write_parent_error_file(job.config.error_file, cause, own_file, clock.wall())
        if problem:
            job.say.warning(problem)
    return code, text
