"""What the kernel said since we started: /dev/kmsg, where it may be read. See kmsg in the kernel's ABI documentation.

The log is the whole machine's: its pids are those of the initial PID namespace, and most of what it tells is about
others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_RECORD_BYTES = 8192
_MAX_RECORDS = 10_000
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
_KILLED = re.compile(
    r"(?P<group>Memory cgroup out of memory|Out of memory).*?: Kill(?:ed)? process (?P<pid>\d+) "
    r"\((?P<name>.*?)\)(?=,? total-vm|,? score|,|$)(?:.*?anon-rss:(?P<rss>\d+)kB)?"
)
_LIMIT = re.compile(r"memory: usage \d+kB, limit (\d+)kB")
_FAULT = re.compile(r"^(?P<name>.*)\[(?P<pid>\d+)\]: segfault at \S+ .*? in (?P<where>[^\[\s]+)")


@dataclass(frozen=True)
class KilledProcess:
    """The kernel killed a process for lack of memory. ``whole_machine``: not because of a control group's limit."""

    pid: int
    name: str
    whole_machine: bool
    resident: int | None = None
    """Bytes of anonymous memory it had."""
    limit: int | None = None
    """Bytes, of the control group that ran into it."""


def parse_killed(line: str) -> KilledProcess | None:
    """Read an out-of-memory kill."""
    match = _KILLED.search(line)
    if match is None:
        return None
    resident = int(match["rss"]) * 1024 if match["rss"] else None
    return KilledProcess(int(match["pid"]), match["name"], match["group"] == "Out of memory", resident)


def parse_kills(lines: Iterable[str]) -> Iterator[KilledProcess]:
    """All out-of-memory kills, each with the limit that the kernel logged some lines before it."""
    limit = None
    for line in lines:
        match = _LIMIT.match(line)
        if match is not None:
            limit = int(match[1]) * 1024
        killed = parse_killed(line)
        if killed is not None:
            yield killed if killed.whole_machine else replace(killed, limit=limit)
            limit = None


def parse_fault(line: str) -> tuple[int, str] | None:
    """Read a segmentation fault: pid and the file whose code ran."""
    match = _FAULT.search(line)
    return None if match is None else (int(match["pid"]), match["where"])


class KernelLog:
    """Reads what is new, never blocks. Made by :func:`open_kernel_log`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_new(self) -> list[str]:
        """The texts of all records since the last call, at most 10 000."""
        texts: list[str] = []
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                # Records were overwritten before we came to read them; the next read goes on behind the gap.
                continue
            except OSError:
                break
            if not record:
                break
            texts.append(_text(record))
        return texts

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def open_kernel_log(path: str = "/dev/kmsg") -> KernelLog | None:
    """Open it at its end; ``None`` where it may not be read (dmesg_restrict, most containers)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
        os.read(descriptor, _RECORD_BYTES)
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        return None
    return KernelLog(descriptor)


def pids_are_ours(namespace: str = "/proc/self/ns/pid") -> bool:
    """Whether the pids in the log are the ones that we know, too."""
    try:
        return os.readlink(namespace) == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _text(record: bytes) -> str:
    """``6,339,5140900,-;text`` and continuation lines that begin with a space."""
    head, _, rest = record.partition(b";")
    return (rest or head).split(b"\n", 1)[0].decode(errors="replace")
