"""Which devices CUDA would show a rank, given ``CUDA_VISIBLE_DEVICES``. Pure; NVML itself ignores that variable.

The rules are CUDA's (CUDA Programming Guide, "CUDA Environment Variables"): unset shows all; identifiers are indices,
UUIDs or unique beginnings of UUIDs; nothing behind the first invalid identifier counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch.launcher.gpu.model import Device


@dataclass(frozen=True)
class Choice:
    """The devices that matter, in CUDA's order where it is known. ``note`` tells what could not be told exactly."""

    devices: tuple[Device, ...]
    note: str = ""


def choose(devices: Sequence[Device], visible: str | None, order: str = "") -> Choice:
    """Choose among all devices of the node, GPUs and MIG instances, in NVML's order.

    ``visible`` is ``CUDA_VISIBLE_DEVICES`` or ``None`` when unset, ``order`` is ``CUDA_DEVICE_ORDER``. A GPU in MIG
    mode stands for all of its instances.
    """
    gpus = [device for device in devices if not device.mig]
    if visible is None:
        return Choice(_expand(gpus, devices))
    words = [word.strip() for word in visible.split(",")]
    by_index = any(_is_number(word) for word in words)
    if by_index and order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        note = (
            "GPUs of different kinds: without CUDA_DEVICE_ORDER=PCI_BUS_ID the numbers in CUDA_VISIBLE_DEVICES "
            "can't be told from NVML's, so all GPUs are watched"
        )
        return Choice(_expand(gpus, devices), note)
    chosen: list[Device] = []
    for word in words:
        found = _find(word, gpus, devices)
        if found is None:
            return Choice(_expand(chosen, devices), _invalid(word, words, visible))
        if found in chosen:
            # CUDA takes a repeated device for a mistake and shows none at all.
            return Choice((), f"CUDA_VISIBLE_DEVICES={visible} names {found} twice: CUDA shows no device")
        chosen.append(found)
    return Choice(_expand(chosen, devices))


def _invalid(word: str, words: Sequence[str], visible: str) -> str:
    if words == [""] or word == "-1":
        return ""
    return f"CUDA_VISIBLE_DEVICES={visible}: there is no device {word!r}; it and what follows are not visible"


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 7


def _find(word: str, gpus: Sequence[Device], devices: Sequence[Device]) -> Device | None:
    if _is_number(word):
        return gpus[int(word)] if int(word) < len(gpus) else None
    if word.startswith("MIG-GPU-"):
        return _find_old_mig_name(word, devices)
    if not word.startswith(("GPU-", "MIG-")):
        return None
    matching = [device for device in devices if device.uuid.lower().startswith(word.lower())]
    return matching[0] if len(matching) == 1 else None


def _find_old_mig_name(word: str, devices: Sequence[Device]) -> Device | None:
    """``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``, the name up to driver 470."""
    parent, _, instances = word[len("MIG-") :].partition("/")
    for device in devices:
        place = f"{device.gpu_instance}/{device.compute_instance}"
        if device.uuid == word or (device.mig and device.parent_uuid == parent and instances == place):
            return device
    return None


def _expand(chosen: Sequence[Device], devices: Sequence[Device]) -> tuple[Device, ...]:
    expanded: list[Device] = []
    for device in chosen:
        instances = [] if device.mig else [other for other in devices if other.mig and other.parent_uuid == device.uuid]
        expanded.extend(instances or [device])
    return tuple(expanded)
