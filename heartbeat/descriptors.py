"""Where our descriptors lie in a rank."""

from __future__ import annotations

import fcntl
import os
import resource


def high_descriptor(fd: int, *, inheritable: bool = False) -> int:
    """Move a descriptor out of the range that scripts use; returns the new number.

    Under 1024 all the same: a larger descriptor table would be copied at every fork.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    floor = max(3, (min(limit, 1024) if limit > 0 else 1024) - 24)
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD if inheritable else fcntl.F_DUPFD_CLOEXEC, floor)
    except OSError:
        os.set_inheritable(fd, inheritable)
        return fd
    os.close(fd)
    return moved
