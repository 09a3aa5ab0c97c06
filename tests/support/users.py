"""Run something as a user without privileges, also when the tests themselves run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

NOBODY = 65534
SOMEBODY = 65533


@dataclass(frozen=True)
class Unprivileged:
    """``prefix`` goes before a command line; ``home`` is a directory that belongs to that user.

    ``python`` is an interpreter that this user can really execute; with ``environment`` it finds the product.
    """

    uid: int
    home: Path
    prefix: tuple[str, ...]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` as this user."""
        return [*self.prefix, *argv]


def as_somebody(user: Unprivileged) -> Unprivileged:
    """Another user, who can run what this one can; only where root plays both."""
    prefix = tuple(word.replace(str(user.uid), str(SOMEBODY)) for word in user.prefix)
    return replace(user, uid=SOMEBODY, prefix=prefix)


def become(home: Path) -> tuple[Unprivileged | None, str]:
    """Return a user without privileges that owns ``home``, or ``None`` and the reason why there is none."""
    if os.getuid() != 0:
        return Unprivileged(os.getuid(), home, ()), ""
    if shutil.which("setpriv") is None:
        return None, "setpriv (util-linux) is missing"
    os.chown(home, NOBODY, NOBODY)
    # The shell in between: setpriv itself still has root's power over paths when it executes its command.
    prefix = (
        *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"),
        *("sh", "-c", 'exec "$@"', "sh"),
    )
    problem = ""
    for python, environment in _interpreters(home):
        user = Unprivileged(NOBODY, home, prefix, python, environment)
        problem = _problem(user)
        if not problem:
            return user, ""
    return None, f"an unprivileged user cannot run the product from here: {problem}"


def _interpreters(home: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """This one; else the system's of the same version, with a tree of links to the product's folders on its path."""
    yield sys.executable, {}
    system = "/usr/bin/python3"
    version = subprocess.run([system, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    if version.stdout.strip() == str(sys.version_info[:2]):
        import ftlaunch.heartbeat
        import ftlaunch.launcher
        import ftlaunch.rendezvous

        tree = home / "product" / "ftlaunch"
        tree.mkdir(parents=True)
        for package in (ftlaunch.heartbeat, ftlaunch.launcher, ftlaunch.rendezvous):
            (tree / package.__name__.rpartition(".")[2]).symlink_to(Path(package.__file__).parent)
        packages = [path for path in sys.path if path.endswith("site-packages")]
        yield system, {"PYTHONPATH": ":".join([str(tree.parent), *packages]), "PYTHONDONTWRITEBYTECODE": "1"}


def _problem(user: Unprivileged) -> str:
    probe = subprocess.run(
        user.command(user.python, "-c", "import ftlaunch.launcher, click"),
        capture_output=True,
        cwd="/",
        env={**os.environ, **user.environment},
    )
    lines = probe.stderr.decode(errors="replace").strip().splitlines()
    return "" if probe.returncode == 0 else " ".join(lines[-1:]) or f"exit code {probe.returncode}"
