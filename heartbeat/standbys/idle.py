"""Which modules must not be imported by a process that is no rank yet, and how to tell when one of them was."""

from __future__ import annotations

import os
import sys
from _signal import SIGCHLD, SIGINT, SIGTERM, getsignal  # type: ignore[import-not-found] # no enum this way

from ftlaunch.heartbeat.harmless import Harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

DENIED = (
    "mpi4py",  # calls MPI_Init
    "horovod",  # starts its background thread through MPI
    "smdistributed",
    "habana_frameworks",  # acquires the device
    "torch_xla",  # may take the accelerator
    "libtpu",
    "pycuda.autoinit",  # makes a CUDA context
    "pycuda.gl",
    "antigravity",
    "this",
    "__main__",
)
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/habana", "/dev/davinci")
EACH_GENERATION_ANEW = ("MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "FTLAUNCH_GENERATION", "FTLAUNCH_SOCKET")
_SIGNAL_LINES = (b"SigBlk:", b"SigIgn:", b"SigCgt:")
_OF_GLIBC = 0b11 << 31
"""Signals 32 and 33: glibc catches them once a second thread exists (nptl(7)), say OpenBLAS's."""


class Denied:
    """The names above and the user's own, with everything below them."""

    def __init__(self, more: Iterable[object]) -> None:
        self._names = {*DENIED, *(name for name in more if isinstance(name, str))}

    def covers(self, name: str) -> bool:
        """Whether a module or one of its parents is denied."""
        parts = name.split(".")
        return any(".".join(parts[:length]) in self._names for length in range(1, len(parts) + 1))


class Watch:
    """Compares the process with what it was: things that an import may do and that cannot be taken back."""

    def __init__(self, *, allow_devices: bool) -> None:
        self._allow_devices = allow_devices
        self._signals = _signals()
        self._devices = _open_devices()

    def difference(self) -> str:
        """What the import just made did, in a few words; "" when nothing. About 0.1 ms."""
        if len(sys._current_frames()) > 1:
            return "starts a thread at import"
        if _children():
            return "leaves a child process at import"
        if _signals() != self._signals:
            return "changes signal handling at import"
        if not self._allow_devices and _open_devices() - self._devices:
            return "opens an accelerator at import"
        return ""


def importing() -> list[str]:
    """Names of the modules that are being executed right now, the innermost first."""
    found = []
    for name, module in list(sys.modules.items()):
        with Harmless():
            spec = object.__getattribute__(module, "__dict__").get("__spec__")
            if getattr(spec, "_initializing", False) and not name.startswith("ftlaunch"):
                found.append(name)
    return found[::-1]


def _signals() -> tuple[object, ...]:
    with open("/proc/self/status", "rb") as status:
        masks = [int(line.split()[1], 16) & ~_OF_GLIBC for line in status if line.startswith(_SIGNAL_LINES)]
    return (*masks, getsignal(SIGINT), getsignal(SIGTERM), getsignal(SIGCHLD))


def _children() -> bool:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as children:
            return bool(children.read().strip())
    except OSError:
        # The kernel was built without it (proc(5), CONFIG_PROC_CHILDREN).
        return False


def _open_devices() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(_DEVICES):
            found.add(target)
    return found
