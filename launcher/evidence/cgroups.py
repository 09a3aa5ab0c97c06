"""Where a process is charged for memory, and what its control group counted. Both hierarchies: cgroups(7).

Version 2: cgroup-v2.rst, memory controller. Version 1: cgroup-v1/memory.rst; there ``oom_kill`` counts the group's own
processes alone. All paths can be moved, for tests, by the directory of /proc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Group:
    """One memory control group as a directory. ``top`` is where its hierarchy is mounted here."""

    path: Path
    top: Path
    version: int

    @property
    def line(self) -> Iterator[Path]:
        """The group and all above it that can be seen from here, upwards."""
        folder = self.path
        yield folder
        while folder != self.top and self.top in folder.parents:
            folder = folder.parent
            yield folder


@dataclass(frozen=True)
class Counters:
    """What the kernel counted for one group. ``limit`` is the smallest that applies, ``peak`` that of its group."""

    kills: int = 0
    """Processes of this group killed for lack of memory."""
    limit: int | None = None
    peak: int | None = None


def locate(pid: int | str, proc: str = "/proc") -> Group | None:
    """The memory group of a process; ``None`` where there is none, or none can be seen. Reads three small files."""
    try:
        memberships = Path(proc, str(pid), "cgroup").read_text(errors="replace")
        mounts = Path(proc, "self", "mountinfo").read_text(errors="replace")
    except OSError:
        return None
    paths = dict(_memberships(memberships))
    # Where both versions are mounted, version 1 has the memory controller if it shows one.
    for version in (1, 2):
        for top, root in _mounts(mounts, version):
            if version in paths:
                group = Group(_below(top, root, paths[version]), top, version)
                # The controller may be enabled only further up (cgroup.subtree_control).
                for folder in group.line:
                    if (folder / _counter_file(version)).exists():
                        return Group(folder, top, version)
    return None


def read_counters(group: Group) -> Counters | None:
    """What was counted so far; ``None`` when the group is gone."""
    facts = _facts(group.path / _counter_file(group.version))
    if facts is None:
        return None
    return Counters(facts.get("oom_kill", 0), *_tightest(group))


def kills_all_at_once(group: Group) -> Path | None:
    """The group in which one lack of memory kills every process (``memory.oom.group``), if there is one."""
    if group.version == 2:
        for folder in group.line:
            if _number(folder / "memory.oom.group") == 1:
                return folder
    return None


def _tightest(group: Group) -> tuple[int | None, int | None]:
    limit_file, peak_file = (
        ("memory.max", "memory.peak") if group.version == 2 else ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
    )
    limit, peak = None, None
    for folder in group.line:
        here = _number(folder / limit_file)
        # Version 1 says "none" with a number near 2^63.
        if here is not None and here < _UNLIMITED and (limit is None or here < limit):
            limit, peak = here, _number(folder / peak_file)
    return limit, peak


def _counter_file(version: int) -> str:
    return "memory.events" if version == 2 else "memory.oom_control"


def _facts(path: Path) -> dict[str, int] | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    words = (line.split() for line in lines)
    return {word[0]: int(word[1]) for word in words if len(word) == 2 and word[1].isdecimal()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _memberships(text: str) -> Iterator[tuple[int, str]]:
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, path
        elif "memory" in controllers.split(","):
            yield 1, path


def _mounts(text: str, version: int) -> Iterator[tuple[Path, str]]:
    """Mount point and mounted root of the memory hierarchy. See /proc/pid/mountinfo in proc(5)."""
    for line in text.splitlines():
        fields, _, filesystem = line.partition(" - ")
        words, kind = fields.split(" "), filesystem.split(" ")
        if len(words) < 5 or len(kind) < 3:
            continue
        wanted = kind[0] == "cgroup2" if version == 2 else kind[0] == "cgroup" and "memory" in kind[2].split(",")
        if wanted:
            yield Path(_unescape(words[4])), _unescape(words[3])


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _below(top: Path, root: str, path: str) -> Path:
    """Where a group's path lies under its mount; a container may see only a part of the hierarchy mounted."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    # A path that leads out of our control group namespace can't be followed.
    return top if ".." in parts else top.joinpath(*parts)
