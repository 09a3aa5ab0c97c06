"""What the agent has to say without a message: one page of shared memory, which ranks can only read.

The first byte becomes 1 when the job is asked to end and a checkpoint should be written now. The rest is between the
agent and its guardian (``launcher/processes/guardian.py``): two native doubles in CLOCK_BOOTTIME seconds, by when the
ranks must be gone (0: never) and when the guardian has ended some, then how many ranks there are and their pids, as
native unsigned ints.
"""

from __future__ import annotations

import mmap

SAVE_NOW = 0
GONE_BY = 8
ENDED_AT = 16
RANKS = 24
SIZE = mmap.PAGESIZE

_page: mmap.mmap | None = None


def attach(fd: int) -> None:
    """Map the agent's page; silently none when that cannot be done."""
    global _page
    try:
        _page = mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        _page = None


def is_set(flag: int) -> bool:
    """Whether the agent has set the flag; False without an agent. About 0.1 µs."""
    return _page is not None and _page[flag] != 0
