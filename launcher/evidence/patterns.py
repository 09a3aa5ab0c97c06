"""What programs say when they fail, and what it means. A table; the first entry that matches counts.

The texts are those of PyTorch (c10, torch.utils.data, ProcessGroupNCCL, gloo), NCCL, CUDA, glibc and Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ftlaunch.launcher.evidence.diagnosis import Kind


@dataclass(frozen=True)
class Pattern:
    """``text`` completes "rank 3 (pid 4711) …"."""

    kind: Kind
    expression: re.Pattern[str]
    text: str
    hint: str = ""


def _pattern(kind: Kind, expression: str, text: str, hint: str = "") -> Pattern:
    return Pattern(kind, re.compile(expression), text, hint)


_MORE_SHM = (
    "give the container more shared memory (docker --shm-size, in Kubernetes an emptyDir of medium Memory at "
    "/dev/shm); --clean-shm removes what is left there and open nowhere"
)

PATTERNS = (
    _pattern(
        Kind.SHARED_MEMORY,
        r"unable to (?:write to file|allocate shared memory|open shared memory|mmap .* bytes from file) ?.*</?torch_"
        r"|workers? (?:are|is) out of shared memory|insufficient shared memory"
        r"|creating shared memory segment|/dev/shm/\S*.{0,80}No space left|No space left.{0,120}/dev/shm",
        "ran out of shared memory (/dev/shm is full)",
        _MORE_SHM,
    ),
    _pattern(
        Kind.LOADER_KILLED,
        r"DataLoader worker.{0,40}(?:killed by signal|exited unexpectedly)",
        "lost a data-loader worker",
        "fewer or leaner workers (num_workers), or more memory for the container",
    ),
    _pattern(
        Kind.CUDA_OUT_OF_MEMORY,
        r"CUDA out of memory|torch(?:\.cuda)?\.OutOfMemoryError|CUDA error: out of memory|Cuda failure 2 "
        r"|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED",
        "ran out of GPU memory",
        "a smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against "
        "fragmentation",
    ),
    _pattern(
        Kind.CUDA_ERROR,
        r"uncorrectable (?:NVLink|ECC) error|illegal memory access|device-side assert|unspecified launch failure"
        r"|misaligned address|illegal instruction was encountered|CUBLAS_STATUS_EXECUTION_FAILED",
        "had a CUDA error",
        "CUDA_LAUNCH_BLOCKING=1 makes the traceback show the kernel that failed",
    ),
    _pattern(
        Kind.CUDA_UNUSABLE,
        r"CUDA driver version is insufficient|no kernel image is available|No CUDA GPUs are available"
        r"|busy or unavailable|Found no NVIDIA driver|driver on your system is too old|invalid device ordinal",
        "could not use its GPU",
        "compare --nproc-per-node and CUDA_VISIBLE_DEVICES with the GPUs that are there, and torch's CUDA version with "
        "the driver",
    ),
    _pattern(
        Kind.DISK_FULL,
        r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b",
        "could not write: the disk or quota is full",
        "free space where checkpoints and logs go; fewer checkpoints kept",
    ),
    _pattern(
        Kind.OPEN_FILES,
        r"Too many open files|Errno 24\b|received 0 items of ancdata",
        "ran out of file descriptors",
        "raise the limit (ulimit -n), or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    _pattern(
        Kind.PORT_IN_USE,
        r"EADDRINUSE|[Aa]ddress already in use|server socket has failed to (?:listen|bind)",
        "found its port taken",
        "leave out --master-port: a free port is chosen for each generation",
    ),
    _pattern(
        Kind.NOT_EXECUTABLE,
        r"Exec format error|cannot execute(?: binary file)?|error while loading shared libraries",
        "could not be executed on this machine",
        "a program for another architecture, a script without #! line, or a library that is missing",
    ),
    _pattern(
        Kind.OUT_OF_MEMORY,
        r"can't allocate memory|Cannot allocate memory|std::bad_alloc|\bMemoryError\b",
        "could not get more memory",
        "more memory for the container, fewer data-loader workers, a smaller batch",
    ),
    _pattern(
        Kind.COLLECTIVE_TIMEOUT,
        r"[Ww]atchdog caught collective operation timeout|[Ww]atchdog (?:thread )?.{0,60}(?:time[d]? ?out|got stuck)"
        r"|NCCL operations have failed or timed out|Timed out waiting \d+ms for (?:recv|send)"
        r"|Timeout waiting for key|wait timeout after \d+ms|Socket Timeout",
        "gave up waiting for another rank in a collective",
        "--hang-timeout below the collective's own timeout finds the rank that does not come",
    ),
    _pattern(
        Kind.PEER_LOST,
        r"Connection (?:closed|reset) by (?:remote )?peer|remote process exited or there was a network error"
        r"|ncclRemoteError|Broken pipe|Connection refused|failed to recv|recvValue failed|NCCL communicator was aborted"
        r"|[Ss]ocket.{0,40}closed by peer",
        "lost the connection to another rank",
    ),
)


def match(text: str) -> Pattern | None:
    """The first entry of the table whose expression occurs in the text."""
    return next((pattern for pattern in PATTERNS if pattern.expression.search(text)), None)
