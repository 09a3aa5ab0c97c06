"""The helper's border to NVML (``pynvml`` of nvidia-ml-py). Only :mod:`ftlaunch.launcher.host.devices` asks it, too.

Every driver object and error is translated here. A function that this driver or this device lacks gives ``None``,
never an error: drivers differ by many years.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ftlaunch.launcher.gpu.holders import process_name
from ftlaunch.launcher.gpu.model import DeviceHealth, DeviceSample, ProcessUse, XidEvent
from ftlaunch.launcher.gpu.nvml_errors import NvmlError, NvmlUnavailable
from ftlaunch.launcher.host.visible import Device
from ftlaunch.launcher.processes import guardian

_T = TypeVar("_T")
_EVENT_WAIT_MS = 3_600_000
_LOST = {
    15: "has fallen off the bus",  # NVML_ERROR_GPU_IS_LOST
    16: "needs a reset before it can be used again",  # NVML_ERROR_RESET_REQUIRED
    28: "is not there any more",  # NVML_ERROR_GPU_NOT_FOUND
}
_UNAVAILABLE = {9, 12, 4, 18}  # driver not loaded, library not found, no permission, library/driver mismatch
_TIMEOUT = 10
_RECOVERY_ACTION_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers from 570 on


class Lost(Exception):
    """The device answers that it can't be used any more. Turned into a value by every public method."""


class Nvml:
    """One initialised NVML. Any call may hang for ever when the driver does."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: dict[str, Any] = {}
        self._lost: dict[str, str] = {}

    def devices(self) -> tuple[Device, ...]:
        """All GPUs and MIG instances that this container may see, in NVML's order."""
        found: list[Device] = []
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                gpu = self._call("nvmlDeviceGetHandleByIndex", index)
                device = Device(self._call("nvmlDeviceGetUUID", gpu), index, self._call("nvmlDeviceGetName", gpu))
            except (Lost, NvmlError) as error:
                # One dead GPU must not hide the others; whoever wants it by index learns why it can't be had.
                device, gpu = Device(f"number {index}", index), None
                self._lost[device.uuid] = str(error)
            found.append(device)
            self._handles[device.uuid] = gpu
            found.extend(self._mig_instances(device, gpu))
        return tuple(found)

    def sample(self, devices: Sequence[Device], marker: str = "") -> tuple[DeviceSample, ...]:
        """Used memory and processes of each device; about 0.1 ms a device."""
        return tuple(self._sample(device, marker) for device in devices)

    def health(self, devices: Sequence[Device]) -> tuple[DeviceHealth, ...]:
        """The error counters of each device; for a MIG instance those of its GPU."""
        return tuple(self._health(device) for device in devices)

    def xid_events(self, devices: Sequence[Device]) -> Iterator[XidEvent]:
        """Wait for critical errors of these devices, for ever. Ends at once where none can be told about.

        Raises :class:`NvmlError` where this driver has no events.
        """
        by_handle: dict[str, Device] = {}
        events = self._call("nvmlEventSetCreate")
        for device in devices:
            uuid = device.parent_uuid or device.uuid
            with contextlib.suppress(NvmlError, Lost):
                handle = self._handle(uuid)
                self._call("nvmlDeviceRegisterEvents", handle, self._library.nvmlEventTypeXidCriticalError, events)
                by_handle[uuid] = device
        while by_handle:
            try:
                data = self._library.nvmlEventSetWait_v2(events, _EVENT_WAIT_MS)
                uuid = self._call("nvmlDeviceGetUUID", data.device)
            except (self._library.NVMLError, NvmlError, Lost) as error:
                if getattr(error, "value", None) == _TIMEOUT:
                    continue
                return
            if uuid in by_handle and data.eventType == self._library.nvmlEventTypeXidCriticalError:
                yield XidEvent(uuid, by_handle[uuid].index, int(data.eventData))

    def _sample(self, device: Device, marker: str) -> DeviceSample:
        try:
            handle = self._handle(device.uuid)
            memory = self._optional("nvmlDeviceGetMemoryInfo", handle)
            processes = self._processes(handle, marker)
        except Lost as error:
            return DeviceSample(device, lost=str(error))
        return DeviceSample(
            device,
            used=None if memory is None else int(memory.used),
            total=None if memory is None else int(memory.total),
            processes=processes,
        )

    def _processes(self, handle: Any, marker: str) -> tuple[ProcessUse, ...] | None:
        """Compute, MPS and graphics processes together; ``None`` when not even the first can be listed."""
        compute = self._list_processes("Compute", handle)
        if compute is None:
            return None
        # Of an MPS client the driver lists the server as the compute process, and the client in a list of its own.
        listed = [*compute, *(self._list_processes("MPSCompute", handle) or ())]
        listed.extend(self._list_processes("Graphics", handle) or ())
        by_pid: dict[int, int | None] = {}
        for process in listed:
            used = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            # The same process may be in two lists with the same memory: the larger number, not the sum.
            by_pid[process.pid] = used if by_pid.get(process.pid) is None else max(by_pid[process.pid] or 0, used or 0)
        return tuple(
            ProcessUse(pid, used, process_name(pid), guardian.carries(pid, marker))
            for pid, used in sorted(by_pid.items())
        )

    def _list_processes(self, kind: str, handle: Any) -> Sequence[Any] | None:
        for version in ("_v3", "_v2"):
            found: Sequence[Any] | None = self._optional(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
            if found is not None:
                return found
        return None

    def _health(self, device: Device) -> DeviceHealth:
        library = self._library
        try:
            handle = self._handle(device.parent_uuid or device.uuid)
            ecc = self._optional(
                "nvmlDeviceGetTotalEccErrors",
                handle,
                library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                library.NVML_VOLATILE_ECC,
            )
            rows = self._optional("nvmlDeviceGetRemappedRows", handle)
            return DeviceHealth(
                device,
                ecc_uncorrected=ecc,
                remap_pending=None if rows is None else bool(rows[2]),
                remap_failed=None if rows is None else bool(rows[3]),
                recovery_action=self._recovery_action(handle),
                nvlinks_up=self._nvlinks(handle),
            )
        except Lost as error:
            return DeviceHealth(device, lost=str(error))

    def _recovery_action(self, handle: Any) -> int | None:
        values = self._optional("nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION_FIELD])
        if values is None or values[0].nvmlReturn != 0:
            return None
        return int(values[0].value.uiVal)

    def _nvlinks(self, handle: Any) -> tuple[int, ...] | None:
        up, known = [], False
        for link in range(self._library.NVML_NVLINK_MAX_LINKS):
            state = self._optional("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break
            known = True
            if state:
                up.append(link)
        return tuple(up) if known else None

    def _mig_instances(self, gpu: Device, handle: Any) -> list[Device]:
        try:
            mode = None if handle is None else self._optional("nvmlDeviceGetMigMode", handle)
            if not mode or mode[0] != 1:
                return []
            count = self._optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
            found = (self._mig_instance(gpu, handle, number) for number in range(count))
            return [device for device in found if device is not None]
        except Lost:
            return []

    def _mig_instance(self, gpu: Device, handle: Any, number: int) -> Device | None:
        instance = self._optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = None if instance is None else self._optional("nvmlDeviceGetUUID", instance)
        if instance is None or uuid is None:
            return None
        self._handles[uuid] = instance
        return Device(
            uuid,
            gpu.index,
            gpu.name,
            mig=True,
            parent_uuid=gpu.uuid,
            gpu_instance=self._optional("nvmlDeviceGetGpuInstanceId", instance),
            compute_instance=self._optional("nvmlDeviceGetComputeInstanceId", instance),
        )

    def _handle(self, uuid: str) -> Any:
        handle = self._handles.get(uuid)
        if handle is None:
            raise Lost(self._lost.get(uuid, _LOST[28]))
        return handle

    def _optional(self, name: str, *arguments: Any) -> Any:
        """The answer, or ``None`` when driver or device can't give one. Raises :class:`Lost`."""
        try:
            return self._call(name, *arguments)
        except NvmlError:
            return None

    def _call(self, name: str, *arguments: Any) -> Any:
        return translated(self._library, name, lambda: getattr(self._library, name)(*arguments))


def translated(library: Any, name: str, call: Callable[[], _T]) -> _T:
    """Call; raises :class:`Lost` or :class:`NvmlError` for what the driver answers, also when it lacks the function."""
    try:
        return call()
    except AttributeError:
        raise NvmlError(f"{name}: this nvidia-ml-py does not have it") from None
    except library.NVMLError as error:
        code = getattr(error, "value", None)
        if code in _LOST:
            raise Lost(_LOST[code]) from None
        kind = NvmlUnavailable if code in _UNAVAILABLE else NvmlError
        raise kind(f"{name}: {error}") from None


def open_nvml() -> Nvml:
    """Load and initialise NVML; up to seconds where the driver is not kept loaded (persistence mode off).

    Raises :class:`NvmlUnavailable` where there is no driver, and :class:`NvmlError` for what else it says.
    """
    try:
        library = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(f"nvidia-ml-py can't be imported ({error})") from None
    try:
        translated(library, "nvmlInit", library.nvmlInit)
    except Lost as error:
        raise NvmlError(f"nvmlInit: a GPU {error}") from None
    return Nvml(library)
