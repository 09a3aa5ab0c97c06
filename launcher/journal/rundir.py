"""The directory of one run: where it is and what is in it; how long it stays is in retention.py.

Chosen once: ``--run-dir``, else ``ftlaunch/runs/<id>`` under the user's state directory, else under TMPDIR or /tmp,
else none at all; never the working directory. Several agents may create, list and prune at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.launcher import clock
from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.host import proctree
from ftlaunch.launcher.journal.records import EVENTS_FILE, is_held, plain

RUN_FILE = "run.json"
LATEST = "latest"
_VERSION = 1
_ID = r"\d{8}-\d{6}-[A-Za-z0-9_.-]*-[0-9a-f]{6}"
EARLIER = "earlier"
"""Folder of a named run directory that holds the runs before."""
_OWN_FILES = (RUN_FILE, EVENTS_FILE, "incidents", "logs", "failure.txt", "report.html")
_ATTEMPTS = 10


@dataclass(frozen=True)
class Owner:
    """The agent process a run belongs to. Pids mean something only on their host and in their pid namespace."""

    host: str
    pid: int
    starttime: int
    """Field 22 of /proc/<pid>/stat, clock ticks since boot (proc(5))."""
    pid_namespace: str
    boot_id: str


@dataclass(frozen=True)
class RunDir:
    """A directory that is ours. ``root`` holds the runs of this user; ``None`` for one that the user named."""

    path: Path
    run_id: str
    root: Path | None

    @property
    def events(self) -> Path:
        """``events.jsonl``"""
        return self.path / EVENTS_FILE

    @property
    def incidents(self) -> Path:
        """Directory of ``NNN.json``; made by the first incident."""
        return self.path / "incidents"

    @property
    def failure_report(self) -> Path:
        """A copy of the failure report, for when the console is gone."""
        return self.path / "failure.txt"

    def describe(self, facts: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        """Add facts to ``run.json``, replacing it as a whole; a failure costs one line."""
        path = self.path / RUN_FILE
        merged = {**(read_run_file(self.path) or {}), **plain(facts)}
        try:
            write_json(path, merged)
        except OSError as error:
            warn(f"cannot write {path}: {error.strerror}")


def open_run_dir(wanted: str | None, environment: Mapping[str, str], job: str) -> tuple[RunDir | None, str]:
    """Choose and create the directory. Returns it, or ``None``, and one line with what is worth knowing about it.

    Raises :class:`UsageError` when the directory that the user asked for cannot be used.
    """
    run_id = make_run_id(job)
    if wanted:
        return _open_wanted(Path(os.path.abspath(wanted)), run_id)
    problem = ""
    for root in candidate_roots(environment):
        try:
            return _create(root, job), ""
        except OSError as error:
            problem = f"{root}: {error.strerror}"
    return None, f"no directory for records and logs ({problem}): output goes to the console only; give --run-dir"


def make_run_id(job: str) -> str:
    """``YYYYmmdd-HHMMSS-<job>-<6 hex digits>`` in UTC: sorts by time, safe as a file name."""
    digits = re.sub(r"\D", "", clock.wall())[:14]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", job)[:40] or "job"
    return f"{digits[:8]}-{digits[8:]}-{name}-{os.urandom(3).hex()}"


def candidate_roots(environment: Mapping[str, str]) -> list[Path]:
    """Where runs may be, best first. A relative XDG_STATE_HOME counts as unset (XDG base directory specification)."""
    roots = []
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if os.path.isabs(state):
        roots.append(Path(state) / "ftlaunch" / "runs")
    elif os.path.isabs(home):
        roots.append(Path(home) / ".local" / "state" / "ftlaunch" / "runs")
    for folder in (environment.get("TMPDIR", ""), "/tmp"):
        root = Path(folder) / f"ftlaunch-{os.getuid()}" / "runs"
        # One that is not there is a mistake of whoever set it, and not ours to make.
        if os.path.isabs(folder) and os.path.isdir(folder) and root not in roots:
            roots.append(root)
    return roots


def _create(root: Path, job: str) -> RunDir:
    # Private: the specification wants it so, and logs may hold what others must not see.
    root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    _require_own(root.parent)
    for _ in range(_ATTEMPTS):
        run_id = make_run_id(job)
        with contextlib.suppress(FileExistsError):
            (root / run_id).mkdir()
            return RunDir(root / run_id, run_id, root)
    raise FileExistsError(0, "no free run id", str(root))


def _require_own(folder: Path) -> None:
    """In /tmp somebody else may have made a directory of our name, or a link, before us."""
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(0, "belongs to another user", str(folder))


def _open_wanted(path: Path, run_id: str) -> tuple[RunDir, str]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        before = read_run_file(path) or {}
        if _lives_here(path, before):
            raise UsageError(f"--run-dir {path}: in use by a running ftlaunch; give another directory")
        aside = _set_aside(path, before)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(0, "not writable", str(path))
    except OSError as error:
        raise UsageError(f"--run-dir {path}: {error.strerror}; give a directory that can be written") from None
    return RunDir(path, run_id, None), _unclean_end(before, aside)


def _set_aside(path: Path, before: Mapping[str, Any]) -> Path | None:
    """A named directory that was used before keeps what it has, below ``earlier/``."""
    if not before and not (path / EVENTS_FILE).exists():
        return None
    name = str(before.get("id", ""))
    aside = path / EARLIER / (name if re.fullmatch(_ID, name) else make_run_id("unknown"))
    aside.mkdir(parents=True)
    for own in _OWN_FILES:
        with contextlib.suppress(FileNotFoundError):
            (path / own).rename(aside / own)
    return aside


def _unclean_end(before: Mapping[str, Any], aside: Path | None) -> str:
    """One line when the agent of the run before was killed, as by a memory limit that takes the whole container."""
    if aside is None or "pid" not in before or before.get("finished"):
        return ""
    who = f"its ftlaunch, pid {before['pid']} on {before.get('host', 'an unknown host')}, did not end in order"
    return f"the run before in {aside.parents[1]} was cut off: {who}; its records are in {aside}"


def point_latest(run: RunDir) -> None:
    """Let the link ``latest`` beside the run lead to it. Best effort: file systems without links have none."""
    if run.root is None:
        return
    temporary = run.root / f".{LATEST}-{run.run_id}"
    with contextlib.suppress(OSError):
        os.symlink(run.run_id, temporary)
        temporary.replace(run.root / LATEST)


def this_owner(host: str) -> Owner:
    """Describe the calling process. Cheap; reads /proc."""
    return Owner(host, os.getpid(), start_time(os.getpid()) or 0, _pid_namespace(), _boot_id())


def start_time(pid: int) -> int | None:
    """When a process was started, in ticks since boot; ``None`` when it is gone (or a zombie)."""
    entry = proctree.read_entry(pid)
    return None if entry is None or entry.state in "ZX" else entry.start_ticks


def owner_facts(owner: Owner) -> dict[str, Any]:
    """The part of ``run.json`` that :func:`is_running` reads."""
    return {
        "version": _VERSION,
        "host": owner.host,
        "pid": owner.pid,
        "starttime": owner.starttime,
        "pid_namespace": owner.pid_namespace,
        "boot_id": owner.boot_id,
    }


def is_running(path: Path) -> bool:
    """Whether the agent of a run lives. One of another machine counts as living until it has finished."""
    facts = read_run_file(path)
    if facts is None or facts.get("finished") or not isinstance(facts.get("pid"), int):
        return False
    if facts.get("boot_id") != _boot_id():
        # The same host before its last reboot cannot be told from another one with the same name: ask the name.
        return facts.get("host") != os.uname().nodename
    return _lives_here(path, facts)


def _lives_here(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether the agent lives on this machine, as far as this can be proven."""
    if facts.get("finished") or facts.get("boot_id") != _boot_id():
        return False
    if facts.get("pid_namespace") != _pid_namespace():
        # Of another container, perhaps one that is gone: its pid says nothing, its lock does.
        return is_held(path / EVENTS_FILE)
    pid = facts.get("pid")
    return isinstance(pid, int) and start_time(pid) == facts.get("starttime")


def died_here(facts: Mapping[str, Any]) -> bool:
    """Whether the agent was one of this machine and pid namespace and is gone without having finished."""
    known = facts.get("boot_id") == _boot_id() and facts.get("pid_namespace") == _pid_namespace()
    pid = facts.get("pid")
    dead = isinstance(pid, int) and start_time(pid) != facts.get("starttime")
    return known and dead and not facts.get("finished")


def read_run_file(path: Path) -> dict[str, Any] | None:
    """``run.json`` of a run directory, or ``None`` when there is none that can be read."""
    try:
        with open(path / RUN_FILE, "rb") as file:
            facts = json.loads(file.read(1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Replace a file as a whole: readers see the old or the new one. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def list_runs(root: Path) -> Iterator[Path]:
    """The run directories below a root, oldest first. Empty when the root cannot be read."""
    try:
        names = sorted(name for name in os.listdir(root) if re.fullmatch(_ID, name))
    except OSError:
        return
    yield from (root / name for name in names)


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
