"""Is there memory left to start ranks in? Pure; texts are those of /proc. See proc(5) and the kernel's psi.rst."""

from __future__ import annotations

from ftlaunch.launcher.health.result import Healthy, Result, Unhealthy
from ftlaunch.launcher.wording import format_bytes

FULL_STALL_PERCENT = 50.0
LOW_MEMORY_FRACTION = 0.05
_CHECK = "memory"


def check_memory(pressure: str, meminfo: str) -> Result:
    """Judge ``/proc/pressure/memory`` (or a cgroup's ``memory.pressure``) together with ``/proc/meminfo``.

    Pressure alone is history: it stays high for a while after those who caused it are gone. So it counts only while
    little memory is available, too.
    """
    stalled = parse_full_stall(pressure)
    available, total = parse_available(meminfo)
    if not total:
        return Healthy(_CHECK)
    left = f"{format_bytes(available)} of {format_bytes(total)} available"
    if available / total >= LOW_MEMORY_FRACTION:
        return Healthy(_CHECK)
    if stalled >= FULL_STALL_PERCENT:
        return Unhealthy(_CHECK, f"everything waited for memory {stalled:.0f} % of the last minute, {left}")
    return Healthy(_CHECK, f"memory is short: {left}")


def parse_full_stall(pressure: str) -> float:
    """Percent of the last minute in which all tasks waited for memory at once; 0 where the kernel does not say."""
    for line in pressure.splitlines():
        if line.startswith("full "):
            for word in line.split():
                name, _, value = word.partition("=")
                if name == "avg60":
                    return _number(value)
    return 0.0


def parse_available(meminfo: str) -> tuple[int, int]:
    """``MemAvailable`` and ``MemTotal`` in bytes; 0 for what is not there."""
    found = {"MemAvailable": 0, "MemTotal": 0}
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(_number(value.split()[0])) * 1024
    return found["MemAvailable"], found["MemTotal"]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
