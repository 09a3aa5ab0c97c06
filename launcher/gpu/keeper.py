"""The node's GPUs as the agent sees them: opened once, a baseline before the first rank, reclaim after each generation.

Without a driver, or with all devices hidden from the ranks, everything here answers at once and starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ftlaunch.launcher import clock
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.gpu import client as nvml
from ftlaunch.launcher.gpu.baseline import Baseline, raise_baseline, take_baseline
from ftlaunch.launcher.gpu.model import DeviceHealth, DeviceSample, Holder, XidEvent
from ftlaunch.launcher.gpu.nvml_errors import NvmlError, NvmlHung
from ftlaunch.launcher.gpu.reclaim import ReclaimOutcome, ReclaimRequest, reclaim
from ftlaunch.launcher.host.visible import Device

_MAX_XIDS = 256
_MAX_RESTARTS = 5


class Gpus:
    """The GPUs that ranks of this node see, once :meth:`open` has found them. No method blocks the loop."""

    def __init__(self, note: str = "", on_xid: Callable[[XidEvent], None] = lambda event: None) -> None:
        self.devices: tuple[Device, ...] = ()
        self.note = note
        """One line for the user, or empty."""
        self.trouble = ""
        """Why the driver can't be trusted on this node; ranks should not run here."""
        self.xids: list[XidEvent] = []
        """Critical errors reported since the start, oldest first."""
        self.healthy_state: tuple[DeviceHealth, ...] = ()
        """The error counters before the first rank started."""
        self.baseline = Baseline()
        self._client: nvml.NvmlClient | None = None
        self._on_xid = on_xid
        self._exempt: frozenset[int] = frozenset()
        self._environment: Mapping[str, str] = {}
        self._marker = ""
        self._restarts = 0

    @property
    def watched(self) -> bool:
        """Whether there is any device to reclaim."""
        return self._client is not None and bool(self.devices)

    async def open(self, environment: Mapping[str, str], marker: str) -> None:
        """Start the helper and choose the devices. Does not raise: see ``note`` and ``trouble``."""
        self._environment, self._marker = environment, marker
        try:
            self.devices, self.note = await self._start()
        except NvmlHung as error:
            self._distrust(error)
        except (SpawnError, NvmlError) as error:
            self.note = f"GPUs are not watched: {error}"
            await self.close()

    async def _start(self) -> tuple[tuple[Device, ...], str]:
        self._client = nvml.start_client(self._environment, self._heard)
        return await self._client.open(
            self._environment.get("CUDA_VISIBLE_DEVICES"), self._environment.get("CUDA_DEVICE_ORDER", ""), self._marker
        )

    async def _driver(self) -> nvml.NvmlClient:
        """The helper, or another one if it was killed (by an out-of-memory kill, by hand)."""
        if self._client is None:
            raise NvmlError("there is no NVIDIA driver to ask")
        if self._client.replaceable and self._restarts < _MAX_RESTARTS:
            self._restarts += 1
            await self._client.close()
            await self._start()
        return self._client

    async def take_baseline(self) -> None:
        """Remember what is in use now. Before the first rank starts; a few ms."""
        if self.watched:
            try:
                self.baseline = take_baseline(await self.sample())
                self.healthy_state = await self.health()
            except NvmlHung as error:
                self._distrust(error)
            except (SpawnError, NvmlError) as error:
                self.note, self.devices = f"GPUs are not watched: {error}", ()

    def _distrust(self, error: NvmlHung) -> None:
        self.trouble = f"{error}; with CUDA_VISIBLE_DEVICES= it is not asked"

    async def observe(self, ours: Collection[int]) -> tuple[DeviceSample, ...]:
        """Look while all of ``ours`` run, so that tenants who came after us are told from us. Empty without GPUs."""
        if not self.watched:
            return ()
        try:
            samples = await self.sample()
        except (SpawnError, NvmlError):
            return ()
        self.baseline = raise_baseline(self.baseline, samples, frozenset(ours))
        return samples

    async def reclaim(self, request: ReclaimRequest) -> ReclaimOutcome:
        """Wait until the GPUs are free again; at most ``request.timeout_s`` plus one driver call.

        Not done means that this node must not carry a rank again. A helper that can't be started is no reason for that.
        """
        if self.trouble:
            return ReclaimOutcome(False, self.trouble, 0.0, 0)
        if not self.watched:
            return ReclaimOutcome(True, self.note or "no GPU in use", 0.0, 0)
        self._exempt = request.exempt
        return await reclaim(self, self.baseline, request, clock.monotonic)

    async def sample(self) -> tuple[DeviceSample, ...]:
        """One look at all visible devices. Raises :class:`NvmlError` or :class:`SpawnError`."""
        return await (await self._driver()).sample()

    async def health(self) -> tuple[DeviceHealth, ...]:
        """The error counters of all visible devices. Raises :class:`NvmlError` or :class:`SpawnError`."""
        return await (await self._driver()).health()

    async def find_holders(self, kill: bool = False) -> tuple[Holder, ...]:
        """Who has device files open; with ``kill``, those of this run get SIGKILL. Raises as :meth:`sample`."""
        return await (await self._driver()).find_holders(kill, self._exempt)

    async def close(self) -> None:
        """End the helper."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _heard(self, event: XidEvent) -> None:
        # The first ones are kept: they are nearest to the cause.
        if len(self.xids) < _MAX_XIDS:
            self.xids.append(event)
        self._on_xid(event)


def describe_reclaim(outcome: ReclaimOutcome) -> str:
    """One line for the log: how long it took, and who was killed for it."""
    text = f"{outcome.reason} ({outcome.elapsed_s:.2f} s, looked {outcome.looks} times)"
    killed = ", ".join(str(replace(holder, used=None)) for holder in outcome.killed)
    return f"{text}; killed {killed}, which this run had left behind" if killed else text
