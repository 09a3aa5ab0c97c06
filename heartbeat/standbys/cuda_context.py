"""Makes the CUDA context of a standby ahead of time, when the user has asked for it.

The driver is asked directly, so that no library takes part: what the script sees of torch is as in a cold
start (``torch.cuda.is_initialized()`` is still false), only the *primary context*, which every user of the CUDA runtime
shares (CUDA Driver API, "Primary Context Management"), is there already. It holds GPU memory as long as the standby
waits.

What can't be hidden: a child forked before the script itself uses CUDA can't use it either.
"""

from __future__ import annotations

import os

PREFIXES = ("CUDA_", "NVIDIA_")
"""Variables that the driver reads when it is initialized, and never again."""


def create() -> str:
    """Make the primary context of the device that this rank will most likely take; "" or why there is none.

    That is the device of the rank's number on its node, counted around where there are fewer. Takes a second or so.
    """
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver is found (libcuda.so.1)"
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or driver.cuDeviceGet(ctypes.byref(device), _local_rank() % max(1, count.value))
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    return f"the CUDA driver refused with error {failed}" if failed else ""


def _local_rank() -> int:
    given = os.environ.get("LOCAL_RANK", "")
    return int(given) if given.isdecimal() else 0
