"""``ftctl`` as a user calls it, in the surroundings of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from support.jobs import Job


class Ctl:
    """Calls ftctl in the surroundings of one job. ``prefix`` as that of the job."""

    def __init__(self, job: Job, prefix: Sequence[str] = ()) -> None:
        self.job = job
        self.prefix = tuple(prefix)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FTLAUNCH_")},
            "XDG_STATE_HOME": str(job.home / "state"),
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it."""
        argv = [*self.prefix, sys.executable, "-m", "ftlaunch.launcher.ftctl", *arguments]
        return subprocess.Popen(argv, env=self.environment, stdin=subprocess.DEVNULL, cwd="/", **options)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it prints; with another ``code`` than 0 its one line on stderr."""
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = (data.decode() for data in process.communicate(timeout=30))
        assert process.returncode == code, out + err
        assert "Traceback" not in err
        if code:
            assert err.startswith("error: ") and err.count("\n") == 1 and not out, err
        return err if code else out

    def status(self) -> dict[str, Any]:
        """The JSON of ``ftctl status``."""
        shape: dict[str, Any] = json.loads(self("status", "--json", "--run", self.run))
        return shape

    @property
    def run(self) -> str:
        """The run directory."""
        assert self.job.run_dir is not None
        return str(self.job.run_dir)
