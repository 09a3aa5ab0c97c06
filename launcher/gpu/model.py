"""What is known of GPUs, as plain values. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ftlaunch.launcher.host.visible import Device
from ftlaunch.launcher.wording import format_bytes


@dataclass(frozen=True)
class ProcessUse:
    """A process that the driver lists on a device. ``used`` is ``None`` where the driver does not tell."""

    pid: int
    used: int | None = None
    name: str = ""
    """Empty when no such process is visible from here: it lives in another PID namespace, or has ended."""
    marked: bool = False
    """It carries this run's marker."""


@dataclass(frozen=True)
class DeviceSample:
    """One look at one device. What the driver refuses to tell is ``None``."""

    device: Device
    used: int | None = None
    total: int | None = None
    processes: tuple[ProcessUse, ...] | None = None
    lost: str = ""
    """Why the device can't be used any more: fallen off the bus, reset required. Else empty."""


@dataclass(frozen=True)
class DeviceHealth:
    """One look at the error counters of one device. What the device does not support is ``None``."""

    device: Device
    lost: str = ""
    ecc_uncorrected: int | None = None
    """Uncorrectable ECC errors since the driver was loaded."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    """NVML's GPU recovery action; 0 is none. Drivers from 570 on."""
    nvlinks_up: tuple[int, ...] | None = None


@dataclass(frozen=True)
class XidEvent:
    """A critical error that the driver reported for a device. See NVIDIA's catalogue of Xid errors."""

    uuid: str
    index: int
    xid: int


@dataclass(frozen=True)
class Holder:
    """A process with a device file open. ``marked``: it belongs to this run."""

    pid: int
    name: str
    marked: bool = False
    used: int | None = None

    def __str__(self) -> str:
        held = f" holds {format_bytes(self.used)}" if self.used else ""
        return f"pid {self.pid} ({self.name or 'not visible from here'}){held}"
