"""What is left in /dev/shm after a generation: listed, and removed only when asked.

Segments of shared memory outlive a process that was killed (shm_overview(7)), and a container's tmpfs outlives the
container's restarts: a few crashes can fill it, and then every start fails. But some are meant to stay, such as
in-memory checkpoints, and nothing tells which program of this user made a file, so nothing is removed unless the user
says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ftlaunch.launcher.host.quick_look import SHM, Identity, shm_files
from ftlaunch.launcher.wording import format_bytes

_MAX_NAMED = 5


@dataclass(frozen=True)
class Segment:
    """One file of shared memory. ``size`` is what it really takes, in bytes."""

    path: str
    identity: Identity
    size: int
    uid: int

    @property
    def name(self) -> str:
        """Without the directory."""
        return os.path.basename(self.path)


def list_segments(folder: str = SHM) -> tuple[Segment, ...]:
    """All regular files there, also in directories below; about 5 µs each. What can't be read is left out."""
    return tuple(
        Segment(path, (facts.st_dev, facts.st_ino), facts.st_blocks * 512, facts.st_uid)
        for path, facts in shm_files(folder)
    )


def fresh(before: Collection[Identity], folder: str = SHM) -> tuple[Segment, ...]:
    """Files of our uid that came after ``before``, whoever made or uses them. As cheap as :func:`list_segments`."""
    uid = os.geteuid()
    return tuple(one for one in list_segments(folder) if one.uid == uid and one.identity not in before)


def unused(segments: Collection[Segment], folder: str = SHM, proc: str = "/proc") -> tuple[Segment, ...]:
    """Those that no living process has mapped or open; the largest first.

    Reads all of /proc that this user may read: some ms for each hundred processes, so off the event loop. Processes of
    other users can't be looked into; their files are not ours by uid. Where /dev/shm is shared with a container of the
    same uid whose processes can't be seen (hostIPC), its files look like ours: one more reason to remove only when
    asked.
    """
    if not segments:
        return ()
    used = in_use(folder, proc)
    return tuple(sorted((one for one in segments if one.identity not in used), key=lambda one: (-one.size, one.path)))


def in_use(folder: str = SHM, proc: str = "/proc") -> frozenset[Identity]:
    """The files below ``folder`` that some process has mapped or open."""
    device = os.stat(folder).st_dev
    found: set[Identity] = set()
    for name in os.listdir(proc):
        if name.isdigit():
            found.update(_mapped(f"{proc}/{name}/maps", device))
            found.update(_opened(f"{proc}/{name}/fd", f"{folder}/"))
    return frozenset(found)


def _mapped(path: str, device: int) -> Iterator[Identity]:
    """See /proc/pid/maps in proc(5): address, permissions, offset, device, inode, path."""
    try:
        with open(path, "rb") as maps:
            for line in maps:
                words = line.split(None, 5)
                if len(words) >= 5 and words[4] != b"0":
                    major, _, minor = words[3].partition(b":")
                    if os.makedev(int(major, 16), int(minor, 16)) == device:
                        yield device, int(words[4])
    except (OSError, ValueError):
        return


def _opened(folder: str, prefix: str) -> Iterator[Identity]:
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return
    for descriptor in descriptors:
        link = f"{folder}/{descriptor}"
        with contextlib.suppress(OSError):
            # By name first: a stat of whatever else is open could hang on a dead mount.
            if os.readlink(link).startswith(prefix):
                facts = os.stat(link)
                yield facts.st_dev, facts.st_ino


def remove(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Remove these files, each only if it is still the same one. Returns those that are gone now."""
    removed = []
    for segment in segments:
        with contextlib.suppress(OSError):
            facts = os.lstat(segment.path)
            if (facts.st_dev, facts.st_ino) == segment.identity:
                os.unlink(segment.path)
                removed.append(segment)
    return tuple(removed)


def free_fraction(folder: str = SHM) -> float | None:
    """What part of it is free; ``None`` where it can't be told."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None
    return facts.f_bavail / facts.f_blocks if facts.f_blocks else None


def describe(segments: Collection[Segment], cleaned: bool, folder: str = SHM) -> str:
    """One line for the user; empty when there is nothing to tell."""
    if not segments:
        return ""
    ordered = sorted(segments, key=lambda segment: -segment.size)
    names = ", ".join(segment.name for segment in ordered[:_MAX_NAMED])
    more = f" and {len(ordered) - _MAX_NAMED} more" if len(ordered) > _MAX_NAMED else ""
    total = format_bytes(sum(segment.size for segment in ordered))
    what = f"new in {folder} since the ranks started, and open nowhere: {names}{more}"
    return f"removed {total} {what}" if cleaned else f"{total} {what} (--clean-shm removes such)"
