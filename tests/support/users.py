"""Run something as a user without privileges, also when the tests themselves run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534


@dataclass(frozen=True)
class Unprivileged:
    """``prefix`` goes before a command line; ``home`` is a directory that belongs to that user."""

    uid: int
    home: Path
    prefix: tuple[str, ...]

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` as this user."""
        return [*self.prefix, *argv]


def become(home: Path) -> tuple[Unprivileged | None, str]:
    """Return a user without privileges that owns ``home``, or ``None`` and the reason why there is none."""
    if os.getuid() != 0:
        return Unprivileged(os.getuid(), home, ()), ""
    if shutil.which("setpriv") is None:
        return None, "setpriv (util-linux) is missing"
    os.chown(home, NOBODY, NOBODY)
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all")
    probe = subprocess.run([*prefix, sys.executable, "-c", "import ftlaunch.launcher"], capture_output=True, cwd="/")
    if probe.returncode != 0:
        last = probe.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return None, f"an unprivileged user cannot import the product from here: {' '.join(last)}"
    return Unprivileged(NOBODY, home, prefix), ""
