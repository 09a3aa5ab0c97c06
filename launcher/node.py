"""What outlives every generation on this machine: its GPUs, its health, its shared memory.

The agent asks :meth:`Node.prepare` before each rendezvous and :meth:`Node.reclaim` when a generation is gone. A node
without GPUs and with room everywhere is found fit by a few system calls; nothing is imported or started for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher import events as ev
from ftlaunch.launcher.checkup import Checkup
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.environment import PRIVATE
from ftlaunch.launcher.errors import NodeUnfit
from ftlaunch.launcher.generations import GenerationRecord
from ftlaunch.launcher.gpu.presence import all_hidden, driver_present
from ftlaunch.launcher.inquiry import Inquiry
from ftlaunch.launcher.shm_watch import ShmWatch

if TYPE_CHECKING:
    from ftlaunch.launcher.actions import StopWorkers
    from ftlaunch.launcher.agent import Agent
    from ftlaunch.launcher.crew import Crew
    from ftlaunch.launcher.gpu.keeper import Gpus
    from ftlaunch.launcher.gpu.model import DeviceSample, XidEvent
    from ftlaunch.rendezvous.interface import World

Tell = Callable[..., None]
_TREE_TIMEOUT_S = 5.0
_LONG_S = 1.0


class Node:
    """Made once per agent; all methods belong to its event loop."""

    def __init__(self, config: Config, marker: str, own_paths: Sequence[str], agent: Agent, tell: Tell) -> None:
        self.gpus: Gpus | None = None
        """``None`` where there is no driver to ask, or all GPUs are hidden from the ranks."""
        self.inquiry: Inquiry | None = None
        self.standbys: Callable[[], Collection[int]] = tuple
        """Pids of processes that live on from one generation to the next."""
        self.gpu_of: dict[int, str] = {}
        """By pid: the UUID of the device on which the driver lists a process of ours."""
        self._config = config.node
        self._marker = marker
        self._environment = node_environment(config)
        self._agent = agent
        self._tell = tell
        self._checkup = Checkup(
            config.node,
            own_paths,
            [config.checkpoints.directory] if config.checkpoints.directory else [],
            {**self._environment, "FTLAUNCH_MARK": marker},
            tell,
        )
        self._shm = ShmWatch(config.node.clean_shm, tell)
        self._pids: tuple[int, ...] = ()
        self._tree: frozenset[int] = frozenset()
        self._running = False
        self._opened = False
        self._free = asyncio.Event()
        self._free.set()

    # -- between generations ------------------------------------------------------------------------------------

    async def prepare(self, history: Sequence[GenerationRecord]) -> Mapping[str, Any]:
        """Make sure that ranks may run here. Raises :class:`NodeUnfit` with the reason where not.

        Runs while the old generation is being stopped. What it still holds may be the very thing that is missing, so a
        bad answer counts only when nothing of it is left; the user's own check is run only then.
        """
        if not self._opened:
            self._opened = True
            await self._open_gpus()
            self._agent.begin(self._look_now_and_then())
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

        Takes at most the reclaim timeout, one driver call and a look at /dev/shm.
        """
        clearing = self._agent.begin(self._shm.clear_up(generation, self._shm.candidates()))
        if self._config.clean_shm:
            await clearing
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
                ours=self._tree.union(self._pids),
                exempt=frozenset(self.standbys()),
                timeout_s=self._config.gpu_reclaim_timeout_s,
                tolerance=self._config.gpu_reclaim_tolerance,
            )
        )
        text = describe_reclaim(outcome)
        self._tell(
            "gpu_memory_back" if outcome.done else "gpu_memory_missing",
            reason=text,
            generation=generation,
            elapsed_s=round(outcome.elapsed_s, 6),
            looks=outcome.looks,
            killed=[holder.pid for holder in outcome.killed],
            say=outcome.done and (bool(outcome.killed) or outcome.elapsed_s > _LONG_S),
        )
        return "" if outcome.done else outcome.reason

    async def close(self, failed: bool) -> None:
        """Release everything; within a few seconds. ``failed``: see to what the last generation left behind, too."""
        if failed and self._pids and not self._free.is_set():
            await self._shm.clear_up(self._agent.state.generation, self._shm.candidates())
        if self.gpus is not None:
            await self.gpus.close()
        if self.inquiry is not None:
            self.inquiry.close()

    # -- while ranks run ----------------------------------------------------------------------------------------

    def before_start(self) -> None:
        """Ranks are about to be started."""
        self._shm.begin()

    def started(self, generation: int, pids: Sequence[int]) -> None:
        """These are the ranks now."""
        self._free.clear()
        self._running = True
        self._pids, self._tree = tuple(pids), frozenset()
        if self.inquiry is not None:
            self.inquiry.begin_soon(generation, self._pids)

    def stopping(self) -> None:
        """Ranks are being stopped, or have ended."""
        self._running = False

    async def _look_now_and_then(self) -> None:
        """A timer, because counters of errors and free memory send no events."""
        reason = ""
        while not reason:
            await asyncio.sleep(self._config.check_every_s)
            reason = await self._look()

    async def _look(self) -> str:
        """Why the node has to be given up, mostly empty; the agent is told."""
        if self.inquiry is not None and self._running:
            self.inquiry.refresh()
        await self._observe()
        reason = await self._checkup.glance(self.gpus)
        if reason:
            self._agent.post(ev.NodeUnhealthy(self._agent.state.generation, f"this node is unhealthy: {reason}"))
        return reason

    async def _observe(self) -> None:
        """See who uses the GPUs while all ranks live: tenants that came after us are not ours to wait for."""
        gpus, pids = self.gpus, self._pids
        if gpus is None or not gpus.watched or not self._runs(pids):
            return
        from ftlaunch.launcher.offload import in_thread

        try:
            tree = await in_thread(partial(_tree, pids), _TREE_TIMEOUT_S)
        except TimeoutError:
            tree = frozenset(pids)
        baseline = gpus.baseline
        samples = await gpus.observe(tree)
        if not self._runs(pids):
            # A rank that dies meanwhile leaves the list before its memory is back: nothing was learnt.
            gpus.baseline = baseline
            return
        self._tree = tree
        self._note_devices(samples)

    def _runs(self, pids: tuple[int, ...]) -> bool:
        """These are still the ranks, and nobody has begun to stop them."""
        return self._running and self._pids is pids

    def _note_devices(self, samples: Sequence[DeviceSample]) -> None:
        for sample in samples:
            for process in sample.processes or ():
                if process.pid in self._tree:
                    self.gpu_of[process.pid] = sample.device.uuid

    # -- GPUs ---------------------------------------------------------------------------------------------------

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


class WatchedCrew:
    """The crew as the agent sees it: the node is told of every start and stop."""

    def __init__(self, crew: Crew, node: Node) -> None:
        self._crew = crew
        self._node = node

    def start(self, world: World) -> None:
        """Start all ranks; WorkersStarted or SpawnFailed follows."""
        self._node.before_start()
        self._crew.start(world)
        self._node.started(world.generation, [worker.pid for worker in self._crew.workers])

    def stop(self, action: StopWorkers) -> None:
        """Stop all ranks; WorkersGone or WorkersUnkillable follows."""
        self._node.stopping()
        self._crew.stop(action)


def node_environment(config: Config) -> dict[str, str]:
    """What the ranks of this node see together: the launcher's own environment, less GPUs that ``--gpus`` left out."""
    environment = {name: value for name, value in config.environment.items() if name not in PRIVATE}
    if config.workers.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(config.workers.gpus)
    return environment


def _tree(roots: Collection[int]) -> frozenset[int]:
    """The ranks and all that descends from them; reads the process table."""
    from ftlaunch.launcher import proctree

    table = proctree.read_table()
    return frozenset(roots).union(entry.pid for root in roots for entry in proctree.descendants(table, root))
