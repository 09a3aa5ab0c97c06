"""What each generation leaves in /dev/shm: told, and removed when asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ftlaunch.launcher.host import shm
from ftlaunch.launcher.host.quick_look import SHM, Identity
from ftlaunch.launcher.processes.offload import in_thread

_TIMEOUT_S = 10.0


class ShmWatch:
    """Looks when the ranks are gone, given what was there before they started."""

    def __init__(self, clean: bool, tell: Callable[..., None], folder: str = SHM) -> None:
        self._clean = clean
        self._tell = tell
        self._folder = folder

    def candidates(self, before: frozenset[Identity]) -> tuple[shm.Segment, ...]:
        """The ranks are gone and the next ones not yet there: what came in between. About 5 µs for each file."""
        return shm.fresh(before, self._folder)

    async def clear_up(self, generation: int, candidates: tuple[shm.Segment, ...]) -> None:
        """Tell which of them nobody uses; with ``clean`` they are removed when this returns.

        Some ms for each hundred processes of the machine, beside the event loop, and at most twenty seconds.
        """
        if not candidates:
            return
        try:
            left = await in_thread(partial(shm.unused, candidates, self._folder), _TIMEOUT_S)
            if self._clean:
                left = await in_thread(partial(shm.remove, left), _TIMEOUT_S)
        except (TimeoutError, OSError) as error:
            self._tell("shm_leftovers", generation=generation, reason=f"leftovers in {self._folder}: {error}")
            return
        if left:
            self._tell(
                "shm_leftovers",
                generation=generation,
                reason=shm.describe(left, self._clean, self._folder),
                removed=self._clean,
                bytes=sum(segment.size for segment in left),
                names=[segment.name for segment in left[:100]],
                say=True,
            )
