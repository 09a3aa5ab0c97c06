"""Which devices CUDA would show a rank, given ``CUDA_VISIBLE_DEVICES``. Pure; NVML itself ignores that variable.

The rules are CUDA's (CUDA Programming Guide, "CUDA Environment Variables"): unset shows all; identifiers are indices,
UUIDs as ``nvidia-smi -L`` writes them, or unique beginnings of UUIDs; nothing behind the first invalid identifier
counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """One device that ranks may use: a whole GPU or one MIG instance. ``index`` is NVML's (PCI bus order)."""

    uuid: str
    index: int
    name: str = ""
    mig: bool = False
    parent_uuid: str = ""
    """Of a MIG instance: the GPU it is cut from."""
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def __str__(self) -> str:
        return f"GPU {self.index} MIG {self.uuid}" if self.mig else f"GPU {self.index} ({self.uuid})"


@dataclass(frozen=True)
class Choice:
    """The devices that matter, in CUDA's order where it is known. ``note`` tells what could not be told exactly."""

    devices: tuple[Device, ...]
    note: str = ""


def entries(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The entries of CUDA_VISIBLE_DEVICES, stripped; ``None`` when it is not set, which means all."""
    listed = environ.get(VISIBLE)
    return None if listed is None else _split(listed)


def choose(devices: Sequence[Device], visible: str | None, order: str = "") -> Choice:
    """Choose among all devices of the node, GPUs and MIG instances, in NVML's order.

    ``visible`` is ``CUDA_VISIBLE_DEVICES`` or ``None`` when unset, ``order`` is ``CUDA_DEVICE_ORDER``. A GPU in MIG
    mode stands for all of its instances.
    """
    gpus = [device for device in devices if not device.mig]
    if visible is None:
        return Choice(_expand(gpus, devices))
    words = _split(visible)
    by_index = any(_is_number(word) for word in words)
    if by_index and order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        note = (
            "GPUs of different kinds: without CUDA_DEVICE_ORDER=PCI_BUS_ID the numbers in CUDA_VISIBLE_DEVICES "
            "can't be told from NVML's, so all GPUs are watched"
        )
        return Choice(_expand(gpus, devices), note)
    choice = named(words, devices)
    return replace(choice, devices=_expand(choice.devices, devices))


def named(words: Sequence[str], devices: Sequence[Device]) -> Choice:
    """The GPU or MIG instance behind each entry, among all devices of the node in NVML's order."""
    gpus = [device for device in devices if not device.mig]
    chosen: list[Device] = []
    for word in words:
        found = _find(word, gpus, devices)
        if found is None:
            return Choice(tuple(chosen), _invalid(word, words))
        if found in chosen:
            # CUDA takes a repeated device for a mistake and shows none at all.
            return Choice((), f"{VISIBLE}={','.join(words)} names {found} twice: CUDA shows no device")
        chosen.append(found)
    return Choice(tuple(chosen))


def narrow(chosen: Sequence[str] | None, wanted: Sequence[str]) -> tuple[str, ...]:
    """Apply ``--gpus``: each wanted entry is a place among the visible ones or a UUID. Returns the new entries.

    Raises :class:`ValueError` with a phrase for the user when one is not visible or comes twice.
    """
    narrowed: list[str] = []
    for want in wanted:
        if _is_number(want):
            if chosen is not None and int(want) >= len(chosen):
                raise ValueError(f"must name visible GPUs: {VISIBLE}={','.join(chosen)} has no number {want}")
            entry = want if chosen is None else chosen[int(want)]
        elif want.startswith(("GPU-", "MIG-")):
            if chosen is not None and want not in chosen:
                raise ValueError(f"must name visible GPUs: {VISIBLE}={','.join(chosen)} does not list {want}")
            entry = want
        else:
            raise ValueError("must be numbers, GPU-... or MIG-... ids with commas between, such as 0,1")
        if entry in narrowed:
            raise ValueError(f"must name every GPU once, but {want} comes twice")
        narrowed.append(entry)
    if not narrowed:
        raise ValueError("must name at least one GPU, such as 0")
    return tuple(narrowed)


def for_rank(chosen: Sequence[str] | None, local_rank: int) -> str:
    """The one entry that a rank sees under ``--virtual-local-rank``; empty when the list has none for it."""
    if chosen is None:
        return str(local_rank)
    return chosen[local_rank] if local_rank < len(chosen) else ""


def _split(listed: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in listed.split(",")) if listed.strip() else ()


def _invalid(word: str, words: Sequence[str]) -> str:
    if word == "-1":
        return ""
    return f"{VISIBLE}={','.join(words)}: there is no device {word!r}; it and what follows are not visible"


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 7


def _find(word: str, gpus: Sequence[Device], devices: Sequence[Device]) -> Device | None:
    if _is_number(word):
        return gpus[int(word)] if int(word) < len(gpus) else None
    if word.startswith("MIG-GPU-"):
        return _find_old_mig_name(word, devices)
    if not word.startswith(("GPU-", "MIG-")):
        return None
    matching = [device for device in devices if device.uuid.startswith(word)]
    return matching[0] if len(matching) == 1 else None


def _find_old_mig_name(word: str, devices: Sequence[Device]) -> Device | None:
    """``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``, the name up to driver 470."""
    parent, _, instances = word[len("MIG-") :].partition("/")
    for device in devices:
        place = f"{device.gpu_instance}/{device.compute_instance}"
        if device.uuid == word or (device.mig and device.parent_uuid == parent and instances == place):
            return device
    for device in devices:
        if device.mig and device.parent_uuid == parent and device.gpu_instance is None:
            # Which instance is which was not asked: the name is believed.
            return Device(word, device.index, device.name, True, parent)
    return None


def _expand(chosen: Sequence[Device], devices: Sequence[Device]) -> tuple[Device, ...]:
    expanded: list[Device] = []
    for device in chosen:
        instances = [] if device.mig else [other for other in devices if other.mig and other.parent_uuid == device.uuid]
        expanded.extend(instances or [device])
    return tuple(expanded)
