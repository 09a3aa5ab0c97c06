"""Is the memory of our dead ranks back? A pure judgement, and a driver that looks until it is or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.gpu.baseline import Baseline, unexplained
from ftlaunch.launcher.gpu.model import DeviceSample, Holder, ProcessUse
from ftlaunch.launcher.gpu.nvml_errors import NvmlDead, NvmlError, NvmlHung
from ftlaunch.launcher.wording import format_bytes

DEFAULT_TOLERANCE_BYTES = 256 << 20
"""The driver's own share of used memory moves by some tens of MiB with contexts of others."""
FAST_INTERVAL_S = 0.02
SLOW_INTERVAL_S = 0.05
_FAST_LOOKS = 25
_SEARCH_EVERY = 10
_FIRST_SEARCH = 4


@dataclass(frozen=True)
class Judgement:
    """``done``: nothing of ours is left. ``hopeless``: waiting will not help. ``holders`` are ours, as listed."""

    done: bool
    holders: tuple[Holder, ...] = ()
    reason: str = ""
    hopeless: bool = False


def reclaimed(
    baseline: Baseline,
    samples: Sequence[DeviceSample],
    ours: Set[int],
    tolerance: int = DEFAULT_TOLERANCE_BYTES,
    exempt: Set[int] = frozenset(),
) -> Judgement:
    """Judge one look at all visible devices.

    Free means: none of ``ours`` (nor anything with our marker) is listed, and used memory, less what other tenants
    hold, is back at the baseline plus ``tolerance`` bytes. Pids in ``exempt`` (standbys) count as other tenants.
    """
    judgements = [_judge_device(baseline, sample, ours, tolerance, exempt) for sample in samples]
    holders = {holder.pid: holder for judgement in judgements for holder in judgement.holders}
    reasons = [judgement.reason for judgement in judgements if not judgement.done]
    return Judgement(
        done=not reasons,
        holders=tuple(holders.values()),
        reason="; ".join(reasons) or "all GPU memory is back",
        hopeless=any(judgement.hopeless for judgement in judgements),
    )


def _judge_device(
    baseline: Baseline, sample: DeviceSample, ours: Set[int], tolerance: int, exempt: Set[int]
) -> Judgement:
    if sample.lost:
        return Judgement(False, (), f"{sample.device} {sample.lost}", hopeless=True)
    listed = sample.processes or ()
    holders = tuple(
        Holder(process.pid, process.name or "already dead", True, process.used)
        for process in listed
        if process.pid not in exempt and (process.pid in ours or process.marked)
    )
    if holders:
        return Judgement(False, holders, f"{sample.device}: {', '.join(map(str, holders))}")
    before = baseline.of(sample)
    others = [process for process in listed if _is_somebody_else(process, before.pids, exempt)]
    rest = unexplained(sample, others)
    if rest is None or before.unexplained is None:
        return Judgement(True)
    excess = rest - before.unexplained
    if excess <= tolerance:
        return Judgement(True)
    return Judgement(False, (), f"{sample.device}: {_describe_excess(excess, listed, others)}")


def _is_somebody_else(process: ProcessUse, before: Set[int], exempt: Set[int]) -> bool:
    """A listed pid that we cannot see may be one of ours by its number in the host's namespace: not known."""
    return process.pid in before or process.pid in exempt or bool(process.name)


def _describe_excess(excess: int, listed: Sequence[ProcessUse], others: Sequence[ProcessUse]) -> str:
    unknown = [process for process in listed if process not in others]
    text = f"{format_bytes(excess)} more in use than before the ranks started"
    if unknown:
        return f"{text}, by {', '.join(f'pid {process.pid}' for process in unknown)} which can't be seen from here"
    return f"{text}, and the driver lists no process that holds it"


class Looking(Protocol):
    """What the driver needs of the GPUs. Calls are bounded; they raise :class:`NvmlError` or :class:`SpawnError`."""

    async def sample(self) -> tuple[DeviceSample, ...]:
        """One look at all visible devices."""

    async def find_holders(self, kill: bool) -> tuple[Holder, ...]:
        """Who has device files open; with ``kill``, those of this run get SIGKILL."""


@dataclass(frozen=True)
class ReclaimRequest:
    """``ours``: all pids that this node's generation had. ``exempt``: ours that live on, such as standbys."""

    ours: frozenset[int]
    exempt: frozenset[int] = frozenset()
    timeout_s: float = 60.0
    tolerance: int = DEFAULT_TOLERANCE_BYTES


@dataclass(frozen=True)
class ReclaimOutcome:
    """``reason`` is one line for the user. ``killed``: stragglers of this run that got SIGKILL, by name."""

    done: bool
    reason: str
    elapsed_s: float
    looks: int
    killed: tuple[Holder, ...] = ()


async def reclaim(
    gpus: Looking,
    baseline: Baseline,
    request: ReclaimRequest,
    clock: Callable[[], float],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> ReclaimOutcome:
    """Look at once, then every 20 ms, later every 50 ms, until all is free, hopeless, or ``timeout_s`` has passed.

    Stragglers of this run are killed as soon as they are seen. Never raises: a driver that does not answer is an
    outcome that is not done. When it can't be asked for other reasons, that is told, and nothing held against the node.
    """
    watch = _Watch(gpus, request, clock() + request.timeout_s)
    started = clock()
    try:
        judgement = await watch.look_until_done(baseline, clock, wait)
        reason = judgement.reason if judgement.done or judgement.hopeless else await watch.name_holders(judgement)
        done = judgement.done
    except NvmlHung as error:
        done, reason = False, str(error)
    except (NvmlError, SpawnError) as error:
        done, reason = True, f"whether GPU memory is back could not be checked: {error}"
    return ReclaimOutcome(done, reason, clock() - started, watch.looks, tuple(watch.killed.values()))


class _Watch:
    def __init__(self, gpus: Looking, request: ReclaimRequest, deadline: float) -> None:
        self.looks = 0
        self.killed: dict[int, Holder] = {}
        self._gpus = gpus
        self._request = request
        self._deadline = deadline

    async def look_until_done(
        self, baseline: Baseline, clock: Callable[[], float], wait: Callable[[float], Awaitable[None]]
    ) -> Judgement:
        while True:
            samples = await self._sample()
            self.looks += 1
            judgement = reclaimed(baseline, samples, self._request.ours, self._request.tolerance, self._request.exempt)
            if judgement.done or judgement.hopeless or clock() >= self._deadline:
                return judgement
            if self.looks % _SEARCH_EVERY == _FIRST_SEARCH:
                # Not at once: the search reads all of /proc, and mostly the driver just needs another moment.
                self._note(await self._gpus.find_holders(kill=True))
            await wait(FAST_INTERVAL_S if self.looks < _FAST_LOOKS else SLOW_INTERVAL_S)

    async def _sample(self) -> tuple[DeviceSample, ...]:
        try:
            return await self._gpus.sample()
        except NvmlHung:
            raise
        except NvmlDead:
            # The helper was killed while it was asked: the next question starts another one.
            return await self._gpus.sample()

    async def name_holders(self, judgement: Judgement) -> str:
        holders = await self._gpus.find_holders(kill=True)
        self._note(holders)
        ours = [str(holder) for holder in holders if holder.marked]
        others = [str(holder) for holder in holders if not holder.marked]
        text = f"GPU memory not back after {self._request.timeout_s:g} s: {judgement.reason}"
        if ours:
            text += f"; device files held by {', '.join(ours)} of this run"
        if others:
            text += f"; device files also held by {', '.join(others)}, not of this run"
        return text

    def _note(self, holders: Sequence[Holder]) -> None:
        self.killed.update((holder.pid, holder) for holder in holders if holder.marked)
