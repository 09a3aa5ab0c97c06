"""A driver library to order: built from nvml_stand_in.c, loaded by the real nvidia-ml-py in the helper process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ftlaunch.launcher.gpu.keeper import Gpus
from ftlaunch.launcher.gpu.model import XidEvent

_SOURCE = Path(__file__).with_name("nvml_stand_in.c")
GIB = 1 << 30


class StandIn:
    """One driver. What it shows is in a file that :meth:`show` replaces as a whole."""

    def __init__(self, folder: Path, *defines: str) -> None:
        self.folder = folder
        self._build(defines)
        self.show()

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which this driver is found."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "STAND_IN_STATE": str(self.folder / "state")}

    def show(self, *facts: str) -> None:
        """From now on the driver tells this and nothing else."""
        fresh = self.folder / "state.new"
        fresh.write_text("".join(f"{fact}\n" for fact in facts))
        fresh.replace(self.folder / "state")

    def _build(self, defines: tuple[str, ...]) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler to build the stand-in for libnvidia-ml.so.1")
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *defines)
        subprocess.run([compiler, *flags, "-o", str(self.folder / "libnvidia-ml.so.1"), str(_SOURCE)], check=True)


def gpu(index: int, used: int, uuid: str = "", name: str = "NVIDIA H100", total: int = 80 * GIB) -> str:
    """The fact of one GPU; its UUID is ``GPU-<index>`` unless given."""
    return f"gpu {index} {uuid or f'GPU-{index}'} {used} {total} {name}"


async def open_gpus(
    environment: Mapping[str, str], marker: str, on_xid: Callable[[XidEvent], None] = lambda event: None
) -> Gpus:
    """The GPUs that ranks with this environment would see, found and watched."""
    gpus = Gpus(on_xid=on_xid)
    await gpus.open(environment, marker)
    return gpus
