"""All checks at once, under one deadline: a check that does not answer is an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.gpu.nvml_errors import NvmlError, NvmlHung
from ftlaunch.launcher.health.result import Health, Healthy, Result, Unhealthy


@dataclass(frozen=True)
class Check:
    """A named check; ``run`` may take its time, it is cancelled at the deadline."""

    name: str
    run: Callable[[], Awaitable[Iterable[Result]]]


async def run_checks(checks: Sequence[Check], deadline_s: float) -> Health:
    """Run them side by side for at most ``deadline_s``. Only a defect of a check raises."""
    if not checks:
        return Health()
    tasks = [asyncio.ensure_future(_answer(check)) for check in checks]
    try:
        await asyncio.wait(tasks, timeout=deadline_s)
    finally:
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    results: list[Result] = []
    for check, task in zip(checks, tasks, strict=True):
        if task in late:
            results.append(Unhealthy(check.name, f"no answer within {deadline_s:g} s"))
        else:
            results.extend(task.result())
    return Health(tuple(results))


async def _answer(check: Check) -> tuple[Result, ...]:
    try:
        return tuple(await check.run())
    except NvmlHung as error:
        return (Unhealthy(check.name, str(error)),)
    except (NvmlError, SpawnError) as error:
        # Nothing is known: that is not held against the node.
        return (Healthy(check.name, f"{check.name} check could not be run: {error}"),)
