"""How many accelerators this job may use, and which, without importing torch.

NVML does not know CUDA_VISIBLE_DEVICES, so whoever asks NVML maps through :func:`select`. NVML counts in PCI order;
CUDA does so on nodes with one model of GPU, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.launcher.host.visible import Device, named

_INTEL = "0x8086"


@dataclass(frozen=True)
class Gpu:
    """One physical GPU. ``uuid`` and ``pci`` (as in /sys/bus/pci/devices) are empty when only its device file is
    known."""

    index: int
    uuid: str = ""
    pci: str = ""
    mig_uuids: tuple[str, ...] = ()


def select(chosen: Sequence[str] | None, table: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The physical GPU behind each visible device, in the order CUDA numbers them.

    Two MIG instances of one GPU give that GPU twice.
    """
    if chosen is None:
        return tuple(table)
    whole = [Device(gpu.uuid, gpu.index) for gpu in table]
    parts = [Device(uuid, gpu.index, mig=True, parent_uuid=gpu.uuid) for gpu in table for uuid in gpu.mig_uuids]
    by_index = {gpu.index: gpu for gpu in table}
    return tuple(by_index[device.index] for device in named(chosen, [*whole, *parts]).devices)


def count_gpus(chosen: Sequence[str] | None) -> int:
    """Visible GPUs, by NVML if there is one, else by device files. Costs an NVML start (some 10 ms) on GPU nodes."""
    table = gpu_table()
    if table and not table[0].uuid and chosen is not None and not all(entry.isdecimal() for entry in chosen):
        # Without NVML no UUID can be looked up, so it is believed.
        return len([entry for entry in chosen if entry.startswith(("GPU-", "MIG-")) or entry.isdecimal()])
    return len(select(chosen, table))


def gpu_table(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """All NVIDIA GPUs of this machine. Empty when there are none, or none that this container may see."""
    files = _device_files(root)
    # The device file of the driver is there before any GPU is: without it, don't pay for NVML.
    if not files and not (root / "dev/nvidiactl").exists() and not (root / "dev/dxg").exists():
        return ()
    return _ask_nvml() or files


def _device_files(root: Path) -> tuple[Gpu, ...]:
    numbers = sorted(
        int(path.name.removeprefix("nvidia"))
        for path in (root / "dev").glob("nvidia[0-9]*")
        if path.name.removeprefix("nvidia").isdecimal()
    )
    # CUDA numbers the devices it can see from 0, whatever their minor numbers are.
    return tuple(Gpu(index) for index in range(len(numbers)))


def _ask_nvml() -> tuple[Gpu, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    return read_nvml(pynvml)


def read_nvml(nvml: Any) -> tuple[Gpu, ...]:
    """Read the table through the ``pynvml`` module (or one that looks like it). Empty when NVML refuses."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    bus_id = _as_text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    return Gpu(index, _as_text(nvml.nvmlDeviceGetUUID(handle)), pci_address(bus_id), tuple(_mig_uuids(nvml, handle)))


def _mig_uuids(nvml: Any, handle: Any) -> Iterable[str]:
    try:
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return
    for slot in range(slots):
        try:
            yield _as_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)))
        except nvml.NVMLError:
            # An empty slot says "not found".
            continue


def pci_address(bus_id: str) -> str:
    """NVML's ``00000000:DC:00.0`` as /sys/bus/pci/devices writes it: ``0000:dc:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def _as_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def count_xpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Intel GPUs with a render node; ZE_AFFINITY_MASK narrows them (its sub-devices count with their device)."""
    vendors = [_read(path) for path in sorted((root / "sys/class/drm").glob("renderD*/device/vendor"))]
    total = vendors.count(_INTEL)
    mask = environ.get("ZE_AFFINITY_MASK", "")
    if not mask:
        return total
    named = {part.strip().partition(".")[0] for part in mask.split(",")}
    return len([device for device in named if device.isdecimal() and int(device) < total])


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
