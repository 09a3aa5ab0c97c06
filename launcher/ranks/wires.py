"""What ties a rank to its agent: made once per agent, inherited by every rank as descriptors."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch.heartbeat import flags

_DOUBLE = struct.Struct("d")


class Lifeline:
    """A pipe whose write end only the agent holds: when the agent dies, however, every reader sees the end of file."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def close(self) -> None:
        """Close both ends; workers that still hold the read end die of it."""
        os.close(self.read_fd)
        os.close(self._write_fd)


class DumpFiles:
    """One anonymous file per local rank, for the stacks that a worker's faulthandler writes (memfd_create(2))."""

    def __init__(self, slots: int) -> None:
        self.fds = tuple(_memory_file(f"ftlaunch-stacks-{local_rank}") for local_rank in range(slots))

    def read(self, local_rank: int) -> bytes:
        """What was written since the last :meth:`clear`; at most 1 MiB."""
        return os.pread(self.fds[local_rank], 1 << 20, 0)

    def clear(self, local_rank: int) -> None:
        """Forget what was written."""
        os.ftruncate(self.fds[local_rank], 0)

    def close(self) -> None:
        """Release the memory."""
        for fd in self.fds:
            os.close(fd)


def _memory_file(name: str) -> int:
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    # Appending: several dumps in a row follow each other, and a truncated file starts at its beginning again.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


class Flags:
    """One page that all ranks of this agent can read: see :mod:`ftlaunch.heartbeat.flags`."""

    def __init__(self) -> None:
        writable = os.memfd_create("ftlaunch-flags", os.MFD_CLOEXEC)
        os.ftruncate(writable, flags.SIZE)
        self.writable = writable
        self._lock = threading.Lock()
        self._closed = False
        # Opened anew, so that a rank gets no right to write.
        self.read_fd = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)

    def ask_to_save(self) -> None:
        """Let ``should_save()`` be true in every rank, now and in all that follow."""
        os.pwrite(self.writable, b"\1", flags.SAVE_NOW)

    def ranks_gone_by(self, moment: float) -> None:
        """Let the guardian end what is left of the ranks then, on CLOCK_BOOTTIME; 0 for never. From any thread."""
        with self._lock:
            if not self._closed:
                os.pwrite(self.writable, _DOUBLE.pack(moment), flags.GONE_BY)

    def ranks_are(self, pids: Sequence[int]) -> None:
        """These run, and nothing is left of those before."""
        shown = pids[: (flags.SIZE - flags.RANKS) // 4 - 1]
        os.pwrite(self.writable, struct.pack(f"{1 + len(shown)}I", len(shown), *shown), flags.RANKS)

    def take_ended(self) -> bool:
        """Whether the guardian has ended a rank since this was asked last."""
        (moment,) = _DOUBLE.unpack(os.pread(self.writable, _DOUBLE.size, flags.ENDED_AT))
        if moment:
            os.pwrite(self.writable, _DOUBLE.pack(0.0), flags.ENDED_AT)
        return bool(moment)

    def close(self) -> None:
        """Ranks that have mapped the page keep it."""
        with self._lock:
            self._closed = True
            os.close(self.read_fd)
            os.close(self.writable)


@dataclass(frozen=True)
class Wires:
    """What ties a rank to its agent."""

    marker: str
    socket_path: str
    lifeline: Lifeline
    dumps: DumpFiles
    flags: Flags
