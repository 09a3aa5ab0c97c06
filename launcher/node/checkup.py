"""The checks of this node, run when they are due; nothing is loaded as long as all is obviously fine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftlaunch.launcher.config import NodeConfig
from ftlaunch.launcher.host.quick_look import is_clear

if TYPE_CHECKING:
    from ftlaunch.launcher.gpu.keeper import Gpus
    from ftlaunch.launcher.health.result import Result
    from ftlaunch.launcher.health.runner import Check


class Checkup:
    """``own_paths`` are on disks that the agent writes to itself; ``foreign_paths`` may hang."""

    def __init__(
        self,
        config: NodeConfig,
        own_paths: Sequence[str],
        foreign_paths: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[..., None],
    ) -> None:
        self._config = config
        self._own_paths = own_paths
        self._foreign_paths = foreign_paths
        self._environment = environment
        self._tell = tell
        self._told: set[str] = set()

    async def examine(self, gpus: Gpus | None) -> str:
        """All checks but the user's own: why no rank should run here; empty when the node is fit.

        Some 50 µs where there is nothing to ask a driver or a foreign file system for.
        """
        clear = is_clear(self._own_paths, self._config.min_free_disk)
        if clear and gpus is None and not self._foreign_paths:
            return ""
        from ftlaunch.launcher.gpu.keeper import Gpus
        from ftlaunch.launcher.health.standard import HealthSettings, standard_checks

        settings = HealthSettings(
            (*self._own_paths, *self._foreign_paths), self._config.min_free_disk, environment=self._environment
        )
        cheap = clear and not self._foreign_paths
        return await self._run(standard_checks(gpus or Gpus(), settings, cheap=cheap), settings.deadline_s)

    async def run_command(self) -> str:
        """The user's own check."""
        from ftlaunch.launcher.health.command import check_command
        from ftlaunch.launcher.health.runner import Check

        timeout_s = self._config.health_check_timeout_s
        command = self._config.health_check or ""

        async def run() -> Iterable[Result]:
            return (await check_command(command, self._environment, timeout_s),)

        # It keeps its own time; one that can't be killed takes a second longer.
        return await self._run([Check("health check", run)], timeout_s + 5.0)

    async def glance(self, gpus: Gpus | None) -> str:
        """While ranks run: what the GPUs say counts, short memory is only told, for the ranks themselves cause it."""
        if gpus is None and is_clear((), 0):
            return ""
        from ftlaunch.launcher.gpu.keeper import Gpus
        from ftlaunch.launcher.health.result import Unhealthy
        from ftlaunch.launcher.health.runner import run_checks
        from ftlaunch.launcher.health.standard import HealthSettings, standard_checks

        settings = HealthSettings()
        health = await run_checks(standard_checks(gpus or Gpus(), settings, cheap=True), settings.deadline_s)
        self._say_once(health.notes)
        bad = [result for result in health.results if isinstance(result, Unhealthy)]
        self._say_once(f"{result.check}: {result.reason}" for result in bad if result.check == "memory")
        return "; ".join(f"{result.check}: {result.reason}" for result in bad if result.check != "memory")

    async def _run(self, checks: Sequence[Check], deadline_s: float) -> str:
        from ftlaunch.launcher.health.runner import run_checks

        health = await run_checks(checks, deadline_s)
        self._say_once(health.notes)
        return health.reason

    def _say_once(self, notes: Iterable[str]) -> None:
        for note in notes:
            # Numbers in it change all the time.
            gist = note.translate(_WITHOUT_DIGITS)
            if gist not in self._told:
                self._told.add(gist)
                self._tell("health", reason=note, say=True)


_WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789."))
