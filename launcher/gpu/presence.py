"""Whether there is a driver to ask at all. Cheap, and imports nothing, so that a node without GPUs pays nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
_LIBRARY = "libnvidia-ml.so.1"


def driver_present(environment: Mapping[str, str], device_files: Iterable[str] = _DEVICE_FILES) -> bool:
    """Whether it is worth asking NVML at all: a few stat(2) calls, nothing is loaded."""
    if any(os.path.exists(path) for path in device_files):
        return True
    folders = environment.get("LD_LIBRARY_PATH", "").split(":")
    return any(folder and os.path.exists(os.path.join(folder, _LIBRARY)) for folder in folders)


def all_hidden(environment: Mapping[str, str]) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` hides every GPU from ranks with this environment."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip() in ("", "-1")
