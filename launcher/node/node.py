"""The light part of the node, which knows its ranks and finds it plainly fit without loading anything.

Everything else is :class:`ftlaunch.launcher.node.keeper.NodeKeeper`, loaded when there is a GPU, a check or a disk to
look at more closely, else beside the first ranks once they are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.host.quick_look import Identity, all_hidden, driver_present, is_clear, shm_identities
from ftlaunch.launcher.ranks.environment import node_environment

if TYPE_CHECKING:
    from ftlaunch.launcher.agent import Agent
    from ftlaunch.launcher.config import Config
    from ftlaunch.launcher.decision.actions import StopWorkers
    from ftlaunch.launcher.decision.generations import GenerationRecord
    from ftlaunch.launcher.evidence.inquiry import Inquiry
    from ftlaunch.launcher.node.keeper import NodeKeeper
    from ftlaunch.launcher.ranks.crew import Crew
    from ftlaunch.rendezvous.interface import Lesson, World

_SETTLE_S = 0.25
"""The first ranks start undisturbed: loading the rest takes some 30 ms."""
_LOAD_TIMEOUT_S = 30.0


class Node:
    """Made once per agent; all methods belong to its event loop. ``make`` makes the keeper, when it is needed."""

    def __init__(self, config: Config, own_paths: Sequence[str], agent: Agent, make: Callable[[], NodeKeeper]) -> None:
        self.own_paths = own_paths
        """On disks that the agent writes to itself."""
        self.pids: tuple[int, ...] = ()
        """The ranks."""
        self.generation = -1
        self.running = False
        """The ranks run, and nobody has begun to stop them."""
        self.shm_before: frozenset[Identity] = frozenset()
        """What was in /dev/shm when they were started."""
        self.loaded: NodeKeeper | None = None
        self._config = config
        self._agent = agent
        self._make = make
        self._loading = False

    @property
    def keeper(self) -> NodeKeeper:
        """The rest of it, loaded now if need be."""
        if self.loaded is None:
            self.loaded = self._make()
            if self.pids:
                self.loaded.started()
        return self.loaded

    @property
    def inquiry(self) -> Inquiry | None:
        """Who finds out why ranks died, if that is loaded already."""
        return self.loaded.inquiry if self.loaded is not None else None

    def inquire(self) -> Inquiry:
        """The same, loaded now if need be."""
        return self.keeper.inquiry

    async def prepare(self, history: Sequence[GenerationRecord]) -> Mapping[str, Any]:
        """Make sure that ranks may run here. Raises :class:`~ftlaunch.launcher.errors.NodeUnfit` where not.

        Some 100 µs where there are no GPUs, no check was asked for and there is room everywhere.
        """
        if self.loaded is None and self._is_plainly_fit():
            return {}
        return await self.keeper.prepare()

    async def reclaim(self, generation: int) -> ev.Event:
        """Get back what the dead generation held: Reclaimed, or NodeUnhealthy when it can't be had."""
        return await self.keeper.reclaim(generation)

    async def close(self, failed: bool) -> None:
        """Release everything; within a few seconds. ``failed``: see to what the last generation left behind, too."""
        if self.loaded is not None or (failed and self.pids and shm_identities() - self.shm_before):
            await self.keeper.close(failed)

    def before_start(self) -> None:
        """Ranks are about to be started."""
        self.shm_before = shm_identities()

    def started(self, generation: int, pids: Sequence[int]) -> None:
        """These are the ranks now."""
        self.generation, self.pids, self.running = generation, tuple(pids), True
        if self.loaded is not None:
            self.loaded.started()
        if not self._loading:
            self._loading = True
            self._agent.begin(self._load())

    def stopping(self) -> None:
        """Ranks are being stopped, or have ended."""
        self.running = False

    async def _load(self) -> None:
        from ftlaunch.heartbeat.watching.endpoint import sweep_stale
        from ftlaunch.launcher.output.threads import start_quiet_thread
        from ftlaunch.launcher.processes.offload import in_thread

        await asyncio.sleep(_SETTLE_S)
        # In a thread, so that a death in these milliseconds is seen at once.
        await in_thread(_preload, _LOAD_TIMEOUT_S)
        self.keeper.inquiry.open()
        # Its agent and its guardian may have been killed together: then nobody else removes the place of their sockets.
        start_quiet_thread(partial(sweep_stale, self._config.environment), "ftlaunch-sweep")

    def _is_plainly_fit(self) -> bool:
        config = self._config
        if config.node.health_check or config.checkpoints.directory:
            return False
        environment = node_environment(config)
        if driver_present(environment) and not all_hidden(environment):
            return False
        return is_clear(self.own_paths, config.node.min_free_disk)


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

    def warm_up(self, lesson: Lesson) -> None:
        """Let standbys import this."""
        self._crew.warm_up(lesson)


def _preload() -> None:
    """Everything that will be needed when a rank dies."""
    from ftlaunch.launcher.evidence import case, collect, inquiry, oom  # noqa: F401
    from ftlaunch.launcher.node import facts, keeper  # noqa: F401
