"""Start ``ftlaunch`` as a user would, in private directories, and be sure that nothing of it stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import procfs
from support.users import Unprivileged
from support.waiting import wait_until

_MARKER = "FTLAUNCH_TEST_JOB"
_VANISH_S = 3.0


class Job:
    """One run of the command line. ``stdout`` and ``stderr`` are files, so that no pipe can fill up."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, marker: str) -> None:
        self.process = process
        self.home = home
        self.marker = marker

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self.process.pid

    @property
    def out(self) -> str:
        """What was written to stdout so far."""
        return (self.home / "stdout").read_text(errors="replace")

    @property
    def err(self) -> str:
        """What was written to stderr so far."""
        return (self.home / "stderr").read_text(errors="replace")

    @property
    def run_dir(self) -> Path | None:
        """The run directory, once there is one. Not for runs with ``--run-dir``."""
        found = sorted(self.home.rglob("events.jsonl"))
        return found[0].parent if found else None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the whole lines of events.jsonl so far, all or those called ``name``."""
        if self.run_dir is None:
            return []
        lines = (self.run_dir / "events.jsonl").read_text().split("\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [event for event in found if name is None or event.get("event") == name]

    def incidents(self) -> list[dict[str, Any]]:
        """Return all incidents of the run, oldest first."""
        folder = self.run_dir
        return (
            [json.loads(path.read_text()) for path in sorted((folder / "incidents").glob("*.json"))] if folder else []
        )

    def signal(self, signum: int) -> None:
        """Signal the agent alone."""
        self.process.send_signal(signum)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Return the exit code; fail the test, with what the job said last, when it does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {timeout_s:g} s; stderr ends with:\n{self.err[-3000:]}"
            ) from None

    def wait_for_output(self, text: str, timeout_s: float = 30.0) -> None:
        """Wait until ``text`` stands in stdout or stderr; fail as soon as the job has ended without it."""

        def there() -> bool:
            ended = self.process.poll() is not None
            if text in self.out or text in self.err:
                return True
            if ended:
                raise AssertionError(
                    f"ended with {self.process.returncode} before {text!r}; stderr:\n{self.err[-3000:]}"
                )
            return False

        wait_until(there, timeout_s, f"{text!r} in the output")

    def processes(self) -> set[int]:
        """Return everything of this job that lives, the agent included."""
        return procfs.carrying(self.marker)

    def close(self) -> list[str]:
        """End it the hard way and return what of it outlived its agent; removes the private directories."""
        tree: set[int] = set()
        if self.process.poll() is None:
            # Helpers with a clean environment are only found below the agent.
            tree = procfs.descendants([self.pid]) - {self.pid}
            self.process.kill()
            self.process.wait()

        def left() -> set[int]:
            return self.processes() | set(filter(procfs.alive, tree))

        survivors: list[str] = []
        try:
            wait_until(lambda: not left(), _VANISH_S)
        except AssertionError:
            survivors = [procfs.describe(pid) for pid in left()]
            procfs.kill(left())
            wait_until(lambda: not left(), _VANISH_S, "killed survivors are gone")
        shutil.rmtree(self.home, ignore_errors=True)
        return survivors


class Launcher:
    """Starts jobs; the fixture ``ftlaunch`` is one. ``module`` is what ``python -m`` runs."""

    def __init__(self, module: str = "ftlaunch.launcher") -> None:
        self.jobs: list[Job] = []
        self._module = module

    def __call__(
        self,
        *args: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        user: Unprivileged | None = None,
        stdin: int = subprocess.DEVNULL,
        prefix: Sequence[str] = (),
    ) -> Job:
        """Start ``ftlaunch args…`` in a session of its own. A value of ``None`` in ``env`` takes a variable away.

        ``prefix``: a command that executes the rest of its line, ``ip netns exec NAME`` for one.
        """
        # Short, because the path of a Unix socket is.
        home = Path(tempfile.mkdtemp(prefix="ft-", dir=None if len(tempfile.gettempdir()) < 40 else "/tmp"))
        marker = f"{_MARKER}={uuid.uuid4().hex}"
        argv = [*prefix, user.python if user else sys.executable, "-m", self._module, *map(str, args)]
        environment = _environment(home, marker, {**(user.environment if user else {}), **(env or {})})
        work = cwd or _private(home, "work")
        if user is not None and user.uid != os.getuid():
            _give(home, user.uid)
        with open(home / "stdout", "wb") as out, open(home / "stderr", "wb") as err:
            process = subprocess.Popen(
                user.command(*argv) if user else argv,
                env=environment,
                cwd=work,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        job = Job(process, home, marker)
        self.jobs.append(job)
        return job

    def close(self) -> list[str]:
        """Close all jobs; returns what outlived its agent."""
        survivors = []
        for job in self.jobs:
            survivors += job.close()
        self.jobs.clear()
        return survivors


def _environment(home: Path, marker: str, changes: Mapping[str, str | None]) -> dict[str, str]:
    name, _, value = marker.partition("=")
    inherited = {
        key: text for key, text in os.environ.items() if not key.startswith(("PET_", "TORCHELASTIC_", "FTLAUNCH_"))
    }
    private = {
        "HOME": str(_private(home, "home")),
        "XDG_STATE_HOME": str(_private(home, "state")),
        "XDG_RUNTIME_DIR": str(_private(home, "run")),
        "XDG_CACHE_HOME": str(_private(home, "cache")),
        "TMPDIR": str(_private(home, "tmp")),
        name: value,
    }
    merged: dict[str, str | None] = {**inherited, **private, **changes}
    return {key: text for key, text in merged.items() if text is not None}


def _private(home: Path, name: str) -> Path:
    path = home / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def _give(home: Path, uid: int) -> None:
    os.chown(home, uid, uid)
    for path in home.rglob("*"):
        os.chown(path, uid, uid)


def interrupt(job: Job, signum: int = signal.SIGTERM, timeout_s: float = 60.0) -> int:
    """Signal the agent and return the code with which it ends."""
    job.signal(signum)
    return job.wait(timeout_s)
