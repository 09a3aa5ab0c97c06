"""The checks of a node, put together from what was configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ftlaunch.launcher.gpu.keeper import Gpus
from ftlaunch.launcher.health.gpus import check_gpus
from ftlaunch.launcher.health.memory import check_memory
from ftlaunch.launcher.health.result import Result
from ftlaunch.launcher.health.runner import Check
from ftlaunch.launcher.health.storage import DEFAULT_MIN_FREE_BYTES, ask_paths, check_path, check_shm


@dataclass(frozen=True)
class HealthSettings:
    """``paths``: where ranks and the agent write."""

    paths: Sequence[str] = ()
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES
    storage_timeout_s: float = 10.0
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_path: str = "/dev/shm"

    @property
    def deadline_s(self) -> float:
        """What a whole round may take."""
        return self.storage_timeout_s + 5.0


def standard_checks(gpus: Gpus, settings: HealthSettings, cheap: bool = False) -> tuple[Check, ...]:
    """The checks before a rendezvous; ``cheap`` leaves those that need no process, for use while ranks run."""
    checks = [Check("memory", _memory)]
    if gpus.watched or gpus.trouble:
        checks.append(Check("GPU", lambda: _gpus(gpus)))
    if not cheap:
        checks.append(Check("storage", lambda: _storage(settings)))
    return tuple(checks)


async def _gpus(gpus: Gpus) -> Sequence[Result]:
    now = () if gpus.trouble else await gpus.health()
    return check_gpus(now, gpus.healthy_state, gpus.xids, gpus.trouble)


async def _memory() -> Sequence[Result]:
    return (check_memory(_read("/proc/pressure/memory"), _read("/proc/meminfo")),)


async def _storage(settings: HealthSettings) -> Sequence[Result]:
    timeout_s = settings.storage_timeout_s
    paths = list(dict.fromkeys((*settings.paths, settings.shm_path)))
    facts = await ask_paths(paths, timeout_s, settings.environment)
    return [
        check_shm(each) if each.path == settings.shm_path else check_path(each, timeout_s, settings.min_free_bytes)
        for each in facts
    ]


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        # Kernels without pressure information, and sandboxes that hide it.
        return ""
