"""Proof that the kernel killed a rank for lack of memory: its group's counters before and after, and the kernel log."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.launcher.evidence.cgroups import Counters, Group, kills_all_at_once, locate, read_counters
from ftlaunch.launcher.evidence.kernel_log import KernelLog, KilledProcess, parse_kills, pids_are_ours


@dataclass(frozen=True)
class OomKill:
    """The kernel killed ``count`` processes of one group since the last look."""

    group: Path
    count: int
    limit: int | None = None
    peak: int | None = None
    whole_machine: bool = False
    resident: int | None = None


@dataclass(frozen=True)
class OomFacts:
    """What happened since the generation began. ``groups``: in which group each followed pid was."""

    kills: tuple[OomKill, ...] = ()
    killed: tuple[KilledProcess, ...] = ()
    """Named by the kernel log, with pids as we know them; empty where the log can't be read or numbers otherwise."""
    groups: Mapping[int, Path] = field(default_factory=dict)

    def of(self, pid: int) -> OomKill | None:
        """The kill that may explain the death of ``pid``: its own by the log, else one in its group."""
        in_group = self.in_group_of(pid)
        named = next((process for process in self.killed if process.pid == pid), None)
        if named is not None:
            known = in_group or OomKill(Path(), 1)
            limit = named.limit if known.limit is None else known.limit
            return OomKill(known.group, known.count, limit, known.peak, named.whole_machine, named.resident)
        if in_group is not None and self.killed and len(self.killed) >= in_group.count:
            # The log names everybody who was killed, and this one is not among them.
            return None
        return in_group

    def in_group_of(self, pid: int) -> OomKill | None:
        """A kill in the group of ``pid``, of itself or of another process there."""
        return next((kill for kill in self.kills if kill.group == self.groups.get(pid)), None)

    def named(self, pid: int) -> bool:
        """Whether the kernel log names this very process."""
        return any(process.pid == pid for process in self.killed)


class OomWatch:
    """Follows the groups of one generation at a time. Costs a few reads of small files, no polling."""

    def __init__(self, log: KernelLog | None = None, proc: str = "/proc") -> None:
        self._log = log if pids_are_ours() else None
        self._proc = proc
        self._groups: dict[int, Group] = {}
        self._before: dict[Path, Counters] = {}
        self._seen: dict[Path, Counters] = {}
        self.lines: list[str] = []
        """What the kernel logged since :meth:`begin`, where its pids are ours."""

    def begin(self, pids: Collection[int]) -> None:
        """Remember the counters of these processes' groups and of our own. As soon as they run."""
        self._groups, self._before, self.lines = {}, {}, []
        for pid in (*pids, os.getpid()):
            group = locate(pid, self._proc)
            if group is not None:
                self._groups[pid] = group
                if group.path not in self._before:
                    self._before[group.path] = read_counters(group) or Counters()
        if self._log is not None:
            self._log.read_new()

    def refresh(self) -> None:
        """See where the processes are now: a script may have moved itself to another group after it began."""
        for pid in self._groups:
            self._follow(pid, known_empty=False)

    def _follow(self, pid: int, known_empty: bool) -> None:
        """``known_empty``: take it that nothing was counted in a new group before, as in one made for this process."""
        group = locate(pid, self._proc)
        if group is None or group == self._groups[pid]:
            return
        if group.version == 1 and group.path == group.top:
            # Version 1 shows every dead process in the root group (cgroup-v1/cgroups.rst).
            return
        self._groups[pid] = group
        if group.path not in self._before:
            seen = self._seen.get(group.path, Counters()) if known_empty else read_counters(group)
            self._before[group.path] = seen or Counters()

    def look(self) -> OomFacts:
        """What the kernel did since :meth:`begin`. The counters rise before a killed process is dead."""
        for pid in self._groups:
            self._follow(pid, known_empty=True)
        by_path = {group.path: group for group in self._groups.values()}
        changes = [(path, self._before[path], read_counters(group)) for path, group in by_path.items()]
        kills = []
        for path, before, after in changes:
            if after is None:
                continue
            self._seen[path] = after
            count = after.kills - before.kills
            if count > 0:
                kills.append(OomKill(path, count, after.limit, after.peak, after.limit is None))
        if self._log is not None:
            self.lines.extend(self._log.read_new())
        return OomFacts(
            tuple(kills),
            tuple(parse_kills(self.lines)),
            {pid: group.path for pid, group in self._groups.items()},
        )


def warn_of_group_kill(proc: str = "/proc") -> str:
    """One line when running out of memory would take the agent along; else empty. Once, at the start."""
    group = locate("self", proc)
    folder = None if group is None else kills_all_at_once(group)
    if folder is None:
        return ""
    return (
        f"memory.oom.group is set at {folder}: when one process runs out of memory the kernel kills all of this "
        "container, ftlaunch too, so nothing can restart in place (Kubernetes 1.28 and later; the kubelet's "
        "singleProcessOOMKill: true turns it off)"
    )
