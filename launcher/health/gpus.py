"""What the driver's error counters say about a node. Pure.

What the numbers of critical errors mean is in NVIDIA's "Xid errors" catalogue. Many of them are the program's own
fault (13, 31, 43, 45) or cost it only a restart (94): those say nothing against the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ftlaunch.launcher.gpu.model import DeviceHealth, XidEvent
from ftlaunch.launcher.health.result import Healthy, Result, Unhealthy

HARDWARE_XIDS = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
}
"""Errors after which the GPU has to be reset, or the node restarted, before it can be trusted again."""

_RECOVERY_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain its peer-to-peer traffic",
    4: "drain it and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset its bus",
    7: "reboot the system",
}
_CHECK = "GPU"


def check_gpus(
    now: Sequence[DeviceHealth], before: Sequence[DeviceHealth] = (), xids: Sequence[XidEvent] = (), trouble: str = ""
) -> tuple[Result, ...]:
    """Judge the devices. ``before``: the counters when the job came here; an error of long ago is nobody's fault now.

    ``trouble``: why the driver itself can't be trusted.
    """
    if trouble:
        return (Unhealthy(_CHECK, trouble),)
    earlier = {health.device.uuid: health for health in before}
    reasons = [reason for health in now for reason in _reasons(health, earlier.get(health.device.uuid))]
    reasons.extend(
        f"GPU {event.index} ({event.uuid}): Xid {event.xid}, {HARDWARE_XIDS[event.xid]}"
        for event in dict.fromkeys(xids)
        if event.xid in HARDWARE_XIDS
    )
    if reasons:
        return tuple(Unhealthy(_CHECK, reason) for reason in dict.fromkeys(reasons))
    return (Healthy(_CHECK, _uneven_links(now)),)


def _reasons(now: DeviceHealth, before: DeviceHealth | None) -> Iterator[str]:
    name = str(now.device)
    if now.lost:
        yield f"{name} {now.lost}"
    if now.recovery_action:
        action = _RECOVERY_ACTIONS.get(now.recovery_action, f"recovery action {now.recovery_action}")
        yield f"{name}: the driver asks to {action}"
    if now.remap_failed:
        yield f"{name}: row remapping has failed, the GPU has to be replaced"
    elif now.remap_pending:
        yield f"{name}: a row remap is pending until the GPU is reset"
    if before is None:
        return
    if now.ecc_uncorrected is not None and before.ecc_uncorrected is not None:
        fresh = now.ecc_uncorrected - before.ecc_uncorrected
        if fresh > 0:
            yield f"{name}: {fresh} uncorrectable ECC error{'s' if fresh > 1 else ''} since the job came here"
    down = sorted(set(before.nvlinks_up or ()) - set(now.nvlinks_up or ()))
    if down and now.nvlinks_up is not None:
        yield f"{name}: NVLink {', '.join(map(str, down))} went down since the job came here"


def _uneven_links(now: Sequence[DeviceHealth]) -> str:
    """GPUs of one kind normally have equally many links up; nobody but the owner of the node knows for sure."""
    counts: dict[str, dict[int, list[int]]] = {}
    for health in now:
        if health.nvlinks_up is not None:
            by_count = counts.setdefault(health.device.name, {})
            by_count.setdefault(len(health.nvlinks_up), []).append(health.device.index)
    for by_count in counts.values():
        if len(by_count) > 1:
            fewest = min(by_count)
            gpus = ", ".join(map(str, by_count[fewest]))
            return f"GPU {gpus} has {fewest} NVLinks up, others of its kind have {max(by_count)}"
    return ""
