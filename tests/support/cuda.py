"""Whether there is a CUDA device to test with."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest


def why_not() -> str:
    """Why nothing can be tested on a GPU here; "" where it can. Initializes the driver in this process."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1) on this machine"
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "no CUDA device on this machine"
    return ""


def need_a_device() -> None:
    """Skip the test where there is no CUDA device."""
    # In a process of its own: a forked child of one that has called cuInit can't use CUDA.
    folder = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {folder!r}); from support import cuda; print(cuda.why_not())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    reason = done.stdout.strip() if done.returncode == 0 else f"the CUDA driver can't be asked: {done.stderr[-200:]}"
    if reason:
        pytest.skip(reason)
