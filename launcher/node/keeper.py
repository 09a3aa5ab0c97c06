"""The heavy part of the node: gives GPUs back, examines the node more closely, clears /dev/shm up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher.config import Config
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.errors import NodeUnfit
from ftlaunch.launcher.host.quick_look import all_hidden, driver_present
from ftlaunch.launcher.node.checkup import Checkup
from ftlaunch.launcher.node.node import Node
from ftlaunch.launcher.node.shm_watch import ShmWatch
from ftlaunch.launcher.processes.offload import in_thread
from ftlaunch.launcher.ranks.environment import node_environment

if TYPE_CHECKING:
    from ftlaunch.launcher.agent import Agent
    from ftlaunch.launcher.evidence.inquiry import Inquiry
    from ftlaunch.launcher.gpu.keeper import Gpus
    from ftlaunch.launcher.gpu.model import DeviceSample, XidEvent

Tell = Callable[..., None]
_TREE_TIMEOUT_S = 5.0
_CLEAR_S = 2.0
_LONG_S = 1.0


class NodeKeeper:
    """Made once per agent, by its :class:`~ftlaunch.launcher.node.node.Node`; all methods belong to the event loop."""

    inquiry: Inquiry
    """Set by whoever makes it: the two need each other."""

    def __init__(self, config: Config, marker: str, node: Node, agent: Agent, tell: Tell) -> None:
        self.gpus: Gpus | None = None
        """``None`` where there is no driver to ask, or all GPUs are hidden from the ranks."""
        self.standbys: Callable[[], Collection[int]] = tuple
        """Pids of processes that live on from one generation to the next."""
        self.gpu_of: dict[int, str] = {}
        """By pid: the UUID of the device on which the driver lists a process of ours."""
        self._config = config.node
        self._marker = marker
        self._environment = node_environment(config)
        self._node = node
        self._agent = agent
        self._tell = tell
        self._checkup = Checkup(
            config.node,
            node.own_paths,
            [config.checkpoints.directory] if config.checkpoints.directory else [],
            {**self._environment, "FTLAUNCH_MARK": marker},
            tell,
        )
        self._shm = ShmWatch(config.node.clean_shm, tell)
        self._clearing: asyncio.Future[None] | None = None
        self._tree: frozenset[int] = frozenset()
        self._opened = False
        self._free = asyncio.Event()
        self._free.set()

    # -- between generations ------------------------------------------------------------------------------------

    async def prepare(self) -> Mapping[str, Any]:
        """Make sure that ranks may run here. Raises :class:`NodeUnfit` with the reason where not.

        Runs while the old generation is being stopped. What it still holds may be the very thing that is missing, so a
        bad answer counts only when nothing of it is left; the user's own check is run only then.
        """
        await self._open()
        reason = await self._checkup.examine(self.gpus)
        if (reason and not self._free.is_set()) or self._config.health_check:
            waited = not self._free.is_set()
            await self._free.wait()
            reason = await self._checkup.examine(self.gpus) if waited and reason else reason
        if not reason and self._config.health_check:
            reason = await self._checkup.run_command()
        if reason:
            raise NodeUnfit(f"this node is unhealthy: {reason}")
        return {}

    async def reclaim(self, generation: int) -> ev.Event:
        """Get back what the dead generation held: Reclaimed, or NodeUnhealthy when it can't be had.

        Takes at most the reclaim timeout, one driver call and, where it is to be cleaned, a look at /dev/shm.
        """
        candidates = self._shm.candidates(self._node.shm_before)
        self._clearing = asyncio.ensure_future(self._shm.clear_up(generation, candidates))
        if self._config.clean_shm:
            await self._clearing
        reason = await self._reclaim_gpus(generation)
        self._free.set()
        return ev.NodeUnhealthy(generation, reason) if reason else ev.Reclaimed(generation)

    async def _reclaim_gpus(self, generation: int) -> str:
        """Why the node has to be given up; empty when all memory is back."""
        if self.gpus is None:
            return ""
        from ftlaunch.launcher.gpu.keeper import describe_reclaim
        from ftlaunch.launcher.gpu.reclaim import ReclaimRequest

        outcome = await self.gpus.reclaim(
            ReclaimRequest(
                ours=self._tree.union(self._node.pids),
                exempt=frozenset(self.standbys()),
                timeout_s=self._config.gpu_reclaim_timeout_s,
                tolerance=self._config.gpu_reclaim_tolerance,
            )
        )
        self._tell(
            "gpu_memory_back" if outcome.done else "gpu_memory_missing",
            reason=describe_reclaim(outcome),
            generation=generation,
            elapsed_s=round(outcome.elapsed_s, 6),
            looks=outcome.looks,
            killed=[holder.pid for holder in outcome.killed],
            say=outcome.done and (bool(outcome.killed) or outcome.elapsed_s > _LONG_S),
        )
        return "" if outcome.done else outcome.reason

    async def close(self, failed: bool) -> None:
        """Release everything; within a few seconds. ``failed``: see to what the last generation left behind, too."""
        if self._clearing is not None:
            await asyncio.wait([self._clearing], timeout=_CLEAR_S)
        if failed and not self._free.is_set():
            await self._shm.clear_up(self._node.generation, self._shm.candidates(self._node.shm_before))
        if self.gpus is not None:
            await self.gpus.close()
        self.inquiry.close()

    # -- while ranks run ----------------------------------------------------------------------------------------

    def started(self) -> None:
        """There are new ranks."""
        if not self._opened:
            # They were started on a look that saw no GPU.
            self._agent.begin(self._open())
        self._free.clear()
        self._tree = frozenset()
        self.inquiry.begin_soon(self._node.generation, self._node.pids)

    async def _look_now_and_then(self) -> None:
        """A timer, because counters of errors and free memory send no events."""
        reason = ""
        while not reason:
            await asyncio.sleep(self._config.check_every_s)
            reason = await self._look()

    async def _look(self) -> str:
        """Why the node has to be given up, mostly empty; the agent is told."""
        if self._node.running:
            self.inquiry.refresh()
        await self._observe()
        reason = await self._checkup.glance(self.gpus)
        if reason:
            self._agent.post(ev.NodeUnhealthy(self._agent.state.generation, f"this node is unhealthy: {reason}"))
        return reason

    async def _observe(self) -> None:
        """See who uses the GPUs while all ranks live: tenants that came after us are not ours to wait for."""
        gpus, pids = self.gpus, self._node.pids
        if gpus is None or not gpus.watched or not self._still_run(pids):
            return
        try:
            tree = await in_thread(partial(_with_descendants, pids), _TREE_TIMEOUT_S)
        except TimeoutError:
            tree = frozenset(pids)
        baseline = gpus.baseline
        samples = await gpus.observe(tree)
        if not self._still_run(pids):
            # A rank that dies meanwhile leaves the list before its memory is back: nothing was learnt.
            gpus.baseline = baseline
            return
        self._tree = tree
        self._note_devices(samples)

    def _still_run(self, pids: tuple[int, ...]) -> bool:
        """These are still the ranks, and nobody has begun to stop them."""
        return self._node.running and self._node.pids is pids

    def _note_devices(self, samples: Sequence[DeviceSample]) -> None:
        for sample in samples:
            for process in sample.processes or ():
                if process.pid in self._tree:
                    self.gpu_of[process.pid] = sample.device.uuid

    # -- GPUs ---------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        await self._open_gpus()
        self._agent.begin(self._look_now_and_then())

    async def _open_gpus(self) -> None:
        if not driver_present(self._environment):
            self._tell("gpus", reason="no NVIDIA driver here: GPUs are not watched")
            return
        if all_hidden(self._environment):
            self._tell("gpus", reason="CUDA_VISIBLE_DEVICES hides all GPUs: they are not watched")
            return
        from ftlaunch.launcher.gpu.keeper import Gpus

        self.gpus = gpus = Gpus(on_xid=self._on_xid)
        await gpus.open(self._environment, self._marker)
        await gpus.take_baseline()
        if gpus.note:
            self._tell("gpus", reason=gpus.note, say=True)
        else:
            self._tell("gpus", reason=gpus.trouble, devices=[str(device) for device in gpus.devices])

    def _on_xid(self, event: XidEvent) -> None:
        from ftlaunch.launcher.health.gpus import HARDWARE_XIDS

        meaning = HARDWARE_XIDS.get(event.xid)
        text = f"GPU {event.index} ({event.uuid}): Xid {event.xid}" + (f", {meaning}" if meaning else "")
        self._tell("xid", reason=text, xid=event.xid, gpu=event.uuid, say=meaning is not None)
        if meaning is not None:
            self._agent.begin(self._look_once())

    async def _look_once(self) -> None:
        await self._look()


def _with_descendants(roots: Collection[int]) -> frozenset[int]:
    """The ranks and all that descends from them; reads the process table."""
    from ftlaunch.launcher.host import proctree

    table = proctree.read_table()
    return frozenset(roots).union(entry.pid for root in roots for entry in proctree.descendants(table, root))
