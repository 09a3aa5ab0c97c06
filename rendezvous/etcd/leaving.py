"""The three ways to leave: wait for the others to finish too, end the job for all, or just go away."""

from __future__ import annotations

import asyncio

from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.records import ClosedRecord, FailureRecord, FinishRecord, RecordError
from ftlaunch.rendezvous.common.waiting import WaitAtEnd
from ftlaunch.rendezvous.etcd.errors import EtcdError
from ftlaunch.rendezvous.etcd.membership import Membership
from ftlaunch.rendezvous.etcd.site import Site, log

_LEAVE_S = 5.0


class Leaving:
    """How this node leaves. None of it takes longer than the caller allows, and none of it raises."""

    def __init__(self, site: Site, membership: Membership) -> None:
        self._site = site
        self._membership = membership
        self._at_end = WaitAtEnd(membership.has_lease)

    @property
    def finishing(self) -> bool:
        """Whether this node waits for the others to finish."""
        return self._at_end.waiting

    def closed(self, exit_code: int) -> None:
        """The job is over: nobody needs to wait any more."""
        self._at_end.over(exit_code)

    def stay(self) -> None:
        """The generation failed elsewhere after all: stop waiting. The next generation voids the mark."""
        self._at_end.over()

    async def wait_for_all(self, generation: int, exit_code: int, timeout_s: float) -> int:
        """Mark this node as finished and wait until the leader saw all marks.

        Nobody's exit code depends on a server that dies first: ``timeout_s`` after it did this node ends with its own.
        """
        site, done = self._site, FinishRecord(self._site.node.node_id, generation)
        marking = asyncio.ensure_future(site.ask(lambda: site.job.finish(done)))
        marking.add_done_callback(self._marked)
        try:
            return await self._at_end.wait(exit_code, timeout_s)
        finally:
            marking.cancel()

    def _marked(self, marking: asyncio.Future[None]) -> None:
        error = None if marking.cancelled() else marking.exception()
        if error is not None:
            log.warning("cannot wait for the other nodes: %s", error)
            self._at_end.over()

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
