"""What the parts of the backend share: the job, this node, the way to etcd, and the tasks that run for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.common.node import NodeDescription
from ftlaunch.rendezvous.common.part import Wanted, new_attempt
from ftlaunch.rendezvous.common.records import HolderRecord
from ftlaunch.rendezvous.etcd.client import EtcdClient
from ftlaunch.rendezvous.etcd.jobkeys import JobKeys, NodeKeys
from ftlaunch.rendezvous.etcd.keys import Keys
from ftlaunch.rendezvous.etcd.retry import Retry
from ftlaunch.rendezvous.etcd.settings import EtcdSettings

log = logging.getLogger("ftlaunch.rendezvous")

T = TypeVar("T")


class Tasks:
    """The tasks of one rendezvous. One that dies of an unexpected error is reported, never forgotten."""

    def __init__(self, on_crash: Callable[[str], None]) -> None:
        self._on_crash = on_crash
        self._running: set[asyncio.Task[Any]] = set()
        self._over = False

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run it until it ends or :meth:`cancel_all`; after that nothing is begun any more."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        if self._over:
            task.cancel()
        return task

    def abandon(self) -> None:
        """Cancel all tasks without waiting for them."""
        self._over = True
        for task in self._running:
            task.cancel()

    async def cancel_all(self) -> None:
        """Cancel all tasks and wait a moment for them."""
        self._over = True
        tasks, self._running = self._running, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended unexpectedly", task.get_name(), exc_info=task.exception())
            self._on_crash(f"{task.get_name()}: {task.exception()!r}")


class Site:
    """Everything about this node and this job that does not change."""

    def __init__(self, settings: EtcdSettings, node: NodeDescription, io: IoThread, client: EtcdClient) -> None:
        self._here = asyncio.get_running_loop()
        self.settings = settings
        self.node = node
        self.io = io
        self.client = client
        self.keys = Keys.of_job(settings.job_id, settings.root)
        self.job = JobKeys(client, self.keys, settings.state_ttl_s)
        self.nodes = NodeKeys(client, self.keys, "" if settings.allow_multiple_agents_per_node else node.machine)
        wanted = Wanted(settings.job_id, settings.min_nodes, settings.max_nodes, settings.join_timeout_s)
        self.job_settings = wanted.settings_of(node)
        self.settings_digest = wanted.digest_of(node)
        self.address = node.local_addr or ""
        self.peer_port = 0

    @property
    def name(self) -> str:
        """This agent, as messages to people call it."""
        return f"{self.node.host} (pid {self.node.pid})"

    def holder(self) -> HolderRecord:
        """This agent, as the holder of a machine or of the leadership."""
        node = self.node
        return HolderRecord(
            node.node_id, node.host, node.pid, self.address, self.peer_port, new_attempt(), self.job_settings
        )

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back on the agent's loop, from any thread. Dropped when that loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._here.call_soon_threadsafe(callback, *args)

    async def ask(self, attempt: Callable[[], Awaitable[T]], limit_s: float = float("inf")) -> T:
        """Do it on the etcd thread, again and again while etcd cannot be reached.

        Raises :class:`~.errors.EtcdError`, :class:`~.errors.Unreachable` only after ``limit_s``.
        """

        async def work() -> T:
            retry = Retry()
            deadline = retry.clock() + limit_s
            return await Retry(deadline=deadline).call(attempt)

        return await self.io.run(work())
