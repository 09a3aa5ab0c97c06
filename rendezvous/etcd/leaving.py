"""The three ways to leave: wait for the others to finish too, end the job for all, or just go away."""

from __future__ import annotations

import asyncio

from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import ClosedRecord, FailureRecord, FinishRecord, RecordError
from ftlaunch.rendezvous.etcd.errors import EtcdError
from ftlaunch.rendezvous.etcd.membership import Membership
from ftlaunch.rendezvous.etcd.site import Site, log

_LEAVE_S = 5.0


class Leaving:
    """How this node leaves. None of it takes longer than the caller allows, and none of it raises."""

    def __init__(self, site: Site, membership: Membership) -> None:
        self._site = site
        self._membership = membership
        self._waiting: asyncio.Future[int] | None = None
        self._default = 0

    @property
    def finishing(self) -> bool:
        """Whether this node waits for the others to finish."""
        return self._waiting is not None

    def closed(self, exit_code: int) -> None:
        """The job is over: nobody needs to wait any more."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(exit_code)

    def stay(self) -> None:
        """The generation failed elsewhere after all: stop waiting. The next generation voids the mark."""
        self.closed(self._default)

    async def wait_for_all(self, generation: int, exit_code: int, timeout_s: float) -> int:
        """Mark this node as finished and wait until the leader saw all marks.

        Nobody's exit code depends on a server that dies first: after ``timeout_s`` this node ends with its own.
        """
        self._waiting = asyncio.get_running_loop().create_future()
        self._default = exit_code
        done = FinishRecord(self._site.node.node_id, generation)
        try:
            return await asyncio.wait_for(self._mark_and_wait(done, self._waiting), timeout_s)
        except asyncio.TimeoutError:
            log.warning("the other nodes did not finish within %g s; this one ends with its own result", timeout_s)
        except EtcdError as error:
            log.warning("cannot wait for the other nodes: %s", error)
        finally:
            self._waiting = None
        return exit_code

    async def _mark_and_wait(self, done: FinishRecord, waiting: asyncio.Future[int]) -> int:
        site = self._site
        await site.ask(lambda: site.job.finish(done))
        return await waiting

    async def close_job(self, exit_code: int, reason: str, timeout_s: float) -> int:
        """End the job for all nodes; returns the exit code that counts: that of the first to say so."""
        site = self._site
        closed = ClosedRecord(exit_code, reason, site.node.node_id, site.node.host, new_attempt())
        try:
            answer = await asyncio.wait_for(
                site.ask(lambda: site.job.close(closed, site.settings.tombstone_ttl_s), timeout_s), timeout_s
            )
        except (EtcdError, RecordError, asyncio.TimeoutError, RuntimeError) as error:
            log.warning("the other nodes could not be told that the job is over: %s", error)
            return exit_code
        return answer.exit_code

    async def leave(self, failure: FailureRecord | None, timeout_s: float) -> None:
        """Go away: tell those who count on this node, then drop its keys; the job goes on without it."""
        limit_s = min(timeout_s, _LEAVE_S)
        try:
            await asyncio.wait_for(self._say_goodbye(failure, limit_s), limit_s)
        except (EtcdError, asyncio.TimeoutError, RuntimeError) as error:
            log.info("left without a word, the lease will end by itself: %s", error)
        finally:
            self._membership.forget()

    async def _say_goodbye(self, failure: FailureRecord | None, limit_s: float) -> None:
        site = self._site
        if failure is not None:
            await site.ask(lambda: site.job.fail(failure), limit_s)
        await self._membership.resign(limit_s)
        await site.ask(site.job.tidy, limit_s)
