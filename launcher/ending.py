"""How a job ends for its user: the note in the run directory, the report, what a container's status tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftlaunch.launcher import clock
from ftlaunch.launcher.config import Config, Stream
from ftlaunch.launcher.decision import actions as do
from ftlaunch.launcher.decision.state import State
from ftlaunch.launcher.narrator import Narrator
from ftlaunch.launcher.output.pump import OutputPump
from ftlaunch.launcher.place import Place
from ftlaunch.launcher.say import Say

if TYPE_CHECKING:
    from ftlaunch.launcher.journal.errorfile import ErrorFile
    from ftlaunch.launcher.journal.incident import Incident


@dataclass(frozen=True)
class Ending:
    """The end of one job. What is only needed for a failure is imported then."""

    config: Config
    place: Place
    pump: OutputPump
    say: Say

    def conclude(self, end: do.Exit, state: State, narrator: Narrator) -> tuple[int, str]:
        """The exit code (as torchrun's if asked for) and the text to print last, empty after a success."""
        self.note(end.exit_code, end.reason)
        if end.exit_code != 0:
            self._tell_the_container(end, narrator)
        if end.exit_code == 0 or narrator.failure is None or state.failure is None:
            return end.exit_code, ""
        narrator.settle()
        if narrator.incident is None:
            return end.exit_code, ""
        return self._report(end, state, narrator.incident)

    def note(self, exit_code: int, reason: str) -> None:
        """Write into the run directory how the job ended."""
        if self.place.run is not None:
            facts = {"finished": True, "exit_code": exit_code, "reason": reason}
            self.place.run.describe(facts, self.say.warning)

    def _tell_the_container(self, end: do.Exit, narrator: Narrator) -> None:
        """For whoever looks why the container ended."""
        from ftlaunch.launcher.health.termination_log import choose_path, write_termination_log

        diagnosis = narrator.incident.diagnosis if narrator.incident is not None else None
        lines = [end.reason, *([str(diagnosis)] if diagnosis is not None else [])]
        note = write_termination_log(choose_path(self.config.node.termination_log), "\n".join(lines) + "\n")
        if note:
            self.say.warning(note)

    def _report(self, end: do.Exit, state: State, incident: Incident) -> tuple[int, str]:
        """The report, with a copy in the run directory; the root cause where our own parent looks for it."""
        from ftlaunch.launcher.journal import errorfile

        cause, run = incident.cause, self.place.run
        own_file = None
        if cause.rank is not None and cause.local_rank is not None:
            own_file = errorfile.read_error_file(
                self.place.layout.error_file(incident.generation, cause.rank, cause.local_rank)
            )
        code = 1 if self.config.torchrun_exit_codes else end.exit_code
        text = self._render(code, end.reason, state, incident, own_file)
        if run is not None:
            try:
                # An exception's text may hold lone surrogates, which no encoder takes.
                run.failure_report.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                self.say.warning(f"cannot write {run.failure_report}: {error.strerror}")
        if self.config.error_file:
            problem = errorfile.write_parent_error_file(self.config.error_file, cause, own_file, clock.wall())
            if problem:
                self.say.warning(problem)
        return code, text

    def _render(self, code: int, reason: str, state: State, incident: Incident, own_file: ErrorFile | None) -> str:
        from ftlaunch.launcher.journal.failure_report import FailureReport, render

        cause, run = incident.cause, self.place.run
        tail: list[bytes] = []
        if cause.rank is not None and cause.local_rank is not None:
            tail = self.pump.tail(incident.generation, cause.local_rank, Stream.ERR)
        return render(
            FailureReport(
                command=self.config.command.target,
                job_id=state.world.run_id if state.world is not None else "",
                generation=incident.generation,
                restarts=max(0, len(state.history) - 1),
                cause=cause,
                exit_code=code,
                exit_reason=reason,
                error_file=own_file,
                stderr_tail=tail,
                ends=incident.consequences,
                logs=str(self.place.layout.generation_dir(incident.generation) or ""),
                records=str(run.path) if run is not None else "",
                diagnosis=incident.diagnosis,
                as_torchrun=self.config.torchrun_exit_codes,
                hints=[incident.diagnosis.hint] if incident.diagnosis is not None else [],
            )
        )
