"""What the devices held before our ranks started. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from ftlaunch.launcher.gpu.model import DeviceSample, ProcessUse


@dataclass(frozen=True)
class DeviceBaseline:
    """One device before our ranks. ``unexplained``: used memory that no listed process accounts for.

    That is what the driver keeps for itself, and what tenants use whom we cannot see; ``None`` where the driver does
    not tell how much is used.
    """

    unexplained: int | None = None
    pids: frozenset[int] = frozenset()
    """Whoever was there before us is somebody else, visible from here or not."""


@dataclass(frozen=True)
class Baseline:
    """All visible devices before our ranks, by UUID."""

    devices: dict[str, DeviceBaseline] = field(default_factory=dict)

    def of(self, sample: DeviceSample) -> DeviceBaseline:
        """The baseline of one device; an empty one for a device that was not there."""
        return self.devices.get(sample.device.uuid, DeviceBaseline())


def take_baseline(samples: Sequence[DeviceSample]) -> Baseline:
    """From a look at the devices before the first rank starts. Every process listed there belongs to others."""
    return Baseline({sample.device.uuid: _device_baseline(sample) for sample in samples})


def _device_baseline(sample: DeviceSample) -> DeviceBaseline:
    processes = sample.processes or ()
    return DeviceBaseline(unexplained(sample, processes), frozenset(process.pid for process in processes))


def unexplained(sample: DeviceSample, explaining: Sequence[ProcessUse]) -> int | None:
    """Used memory minus what the given processes hold; ``None`` where one of the numbers is not known."""
    if sample.used is None or any(process.used is None for process in explaining):
        return None
    return max(0, sample.used - sum(process.used or 0 for process in explaining))


def raise_baseline(baseline: Baseline, running: Sequence[DeviceSample], ours: Set[int]) -> Baseline:
    """Take account of tenants that came after us and whom we cannot see.

    ``running`` must be a look taken while all of ``ours`` were alive: then memory that no listed process accounts for
    is somebody else's. A device on which the driver lists none of ours is left as it is: there this cannot be told.
    """
    devices = dict(baseline.devices)
    for sample in running:
        processes = sample.processes or ()
        if not any(process.pid in ours for process in processes):
            continue
        before, now = baseline.of(sample), unexplained(sample, processes)
        if before.unexplained is not None and now is not None and now > before.unexplained:
            devices[sample.device.uuid] = replace(before, unexplained=now)
    return Baseline(devices)
