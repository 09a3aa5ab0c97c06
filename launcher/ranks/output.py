"""The output of ranks as the crew sees it: pipes for whom it starts."""

from __future__ import annotations

from collections.abc import Hashable

from ftlaunch.launcher.output.pump import OutputPump
from ftlaunch.launcher.ranks.plan import Rank


class RankOutput:
    """The crew's view of the output pump."""

    def __init__(self, pump: OutputPump, role: str) -> None:
        self._pump = pump
        self._role = role

    def attach(self, rank: Rank) -> tuple[int, int]:
        """Pipes for a rank that is about to be spawned."""
        pipes = self._pump.attach(rank.generation, rank.rank, rank.local_rank, self._role)
        return pipes.stdout_fd, pipes.stderr_fd

    def attach_idle(self, token: Hashable) -> tuple[int, int]:
        """Pipes for a process that is no rank yet."""
        pipes = self._pump.attach_idle(token)
        return pipes.stdout_fd, pipes.stderr_fd

    def promote(self, token: Hashable, rank: Rank) -> None:
        """It has become this rank."""
        self._pump.promote(token, rank.generation, rank.rank, rank.local_rank, self._role)

    def discard(self, token: Hashable) -> None:
        """It never will."""
        self._pump.discard(token)

    async def drained(self, generation: int) -> None:
        """Everything that dead ranks wrote is where it belongs."""
        await self._pump.drained(generation)
