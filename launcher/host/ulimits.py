"""Limits of this process that a job has to fit in (ulimit, getrlimit(2)): found out before anything is started."""

from __future__ import annotations

import os
import resource

from ftlaunch.launcher.errors import UsageError

_FILES = 32
"""Beside standard streams: the loop, sockets, records, the guardian, what is read from /proc meanwhile."""
_FILES_OF_NODES = 16
"""More, where there are several: connections to etcd or to the meeting point, and to neighbours."""
_FILES_PER_RANK = 6
"""Two pipes and their log files, the process, memory for its stacks."""
_FILES_PER_STANDBY = 4
LEAST_FILE_BYTES = 1 << 16
"""Records of a run that are smaller tell nothing."""


def files_needed(ranks: int, standbys: bool = False, nodes: int = 1) -> int:
    """How many descriptors the agent opens at most, by and large."""
    each = _FILES_PER_RANK + (_FILES_PER_STANDBY if standbys else 0)
    return _FILES + (_FILES_OF_NODES if nodes > 1 else 0) + each * ranks


def files_left() -> int:
    """How many descriptors this process may still open; a very large number where there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    try:
        used = len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        # Not even that can be opened.
        used = limit
    return limit - used


def require_room(ranks: int = 1, nodes: int = 1) -> None:
    """Raise :class:`UsageError` where an agent with so many ranks could not do its work."""
    needed, left = files_needed(ranks, nodes=nodes), files_left()
    if left < needed:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        of_limit = f"{limit} are allowed" + (f" and {limit - left} in use" if left < limit - 3 else "")
        raise UsageError(
            f"too few open files: {ranks} rank{'s need' if ranks > 1 else ' needs'} about {needed}, {of_limit}; "
            "raise the limit (ulimit -n)"
        )
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != resource.RLIM_INFINITY and size < LEAST_FILE_BYTES:
        raise UsageError(
            f"files may have at most {size} bytes here, and the records of a run need {LEAST_FILE_BYTES}; "
            "raise the limit (ulimit -f)"
        )
