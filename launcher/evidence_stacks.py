"""Collects the Python stacks of all ranks while they still live. Nobody is hurt by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ftlaunch.heartbeat import stackdump, stacks
from ftlaunch.launcher import clock, proctree
from ftlaunch.launcher.plan import DumpFiles
from ftlaunch.launcher.process import WorkerProcess

BUDGET_S = 0.5
_PAUSE_S = 0.01

Alive = Mapping[int, tuple[int, WorkerProcess]]
"""Global rank -> (local rank, process)."""


class StackCollector:
    """Asks each rank's faulthandler for its stacks and reads them from the shared memory file."""

    def __init__(self, dumps: DumpFiles) -> None:
        self._dumps = dumps

    async def collect(self, alive: Alive, silence_s: Mapping[int, float]) -> tuple[str, ...]:
        """One summary line, one block for each group of identical stacks, a line for ranks that could not be asked."""
        texts = await self.dump(alive)
        groups = stacks.group({rank: stacks.main_stack(text) for rank, text in texts.items() if text})
        suspected = stacks.suspects(groups, silence_s)
        lines = [stacks.describe(groups, suspected)] if groups else []
        lines += stacks.render(groups)
        for rank in sorted(set(alive) - {rank for rank, text in texts.items() if text}):
            lines.append(f"rank {rank} gave no stack: {kernel_view(alive[rank][1].pid)}")
        ages = ", ".join(f"rank {rank} {seconds:.1f} s" for rank, seconds in sorted(silence_s.items())[:64])
        return (*lines, f"silent for: {ages}") if ages else tuple(lines)

    async def dump(self, alive: Alive) -> dict[int, str]:
        """The text of each rank's dump, empty where there is none; at most BUDGET_S."""
        asked = {}
        for rank, (local_rank, worker) in alive.items():
            # Without the handler the signal would kill, so the kernel is asked first. A stopped rank cannot answer.
            if not _is_stopped(worker.pid) and proctree.has_handler(worker.pid, stackdump.DUMP_SIGNAL):
                self._dumps.clear(local_rank)
                worker.signal(stackdump.DUMP_SIGNAL)
                asked[rank] = local_rank
        deadline = clock.monotonic() + BUDGET_S
        while clock.monotonic() < deadline and not all(self._complete(local) for local in asked.values()):  # noqa: ASYNC110
            # A signal handler in another process tells nobody when it is done; its text does.
            await asyncio.sleep(_PAUSE_S)
        return {rank: self._text(asked[rank]) if rank in asked else "" for rank in alive}

    def _complete(self, local_rank: int) -> bool:
        return stackdump.is_complete(self._text(local_rank))

    def _text(self, local_rank: int) -> str:
        return self._dumps.read(local_rank).decode("utf-8", "replace")


def _is_stopped(pid: int) -> bool:
    entry = proctree.read_entry(pid)
    return entry is not None and entry.state in "tT"


def kernel_view(pid: int) -> str:
    """State and kernel stack or wait channel, as far as this user may see them (proc(5))."""
    entry = proctree.read_entry(pid)
    state = f"state {entry.state}" if entry is not None else "gone"
    for name in ("stack", "wchan"):
        try:
            with open(f"/proc/{pid}/{name}", encoding="ascii", errors="replace") as file:
                text = file.read(2000).strip()
        except OSError:
            continue
        if text and text != "0":
            return f"{state}, in the kernel: {'; '.join(text.splitlines()[:5])}"
    return state
