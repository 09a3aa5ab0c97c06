"""Collects the Python stacks of all ranks while they still live. Nobody is hurt by it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ftlaunch.heartbeat import stackdump
from ftlaunch.heartbeat.watching import procstate, suspects
from ftlaunch.heartbeat.watching.stackread import StackSnapshot, parse_faulthandler, parse_pyspy
from ftlaunch.heartbeat.watching.suspects import RankEvidence
from ftlaunch.launcher import clock
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.host import proctree
from ftlaunch.launcher.processes import bystanders
from ftlaunch.launcher.processes.process import WorkerProcess
from ftlaunch.launcher.ranks.wires import DumpFiles

BUDGET_S = 0.5
PYSPY_TIMEOUT_S = 2.0
_PAUSE_S = 0.01
_PYSPY_BYTES = 1 << 18

Alive = Mapping[int, tuple[int, WorkerProcess]]
"""Global rank -> (local rank, process)."""


@dataclass(frozen=True)
class Findings:
    """What the stacks tell. ``suspect``: global rank of the one that holds the others up, ``None`` if none does."""

    suspect: int | None = None
    why: str = ""
    blocks: tuple[str, ...] = ()
    evidence: tuple[RankEvidence, ...] = ()


class StackCollector:
    """Asks each rank's faulthandler for its stacks and reads them from the shared memory file.

    A rank that cannot answer (stopped, or not Python started by us) is looked at with py-spy, where that is installed.
    """

    def __init__(self, dumps: DumpFiles, environment: Mapping[str, str]) -> None:
        """``environment``: what py-spy inherits, and where it is looked for."""
        self._dumps = dumps
        self._environment = environment

    async def collect(self, alive: Alive, known: Mapping[int, RankEvidence]) -> Findings:
        """The suspect, and blocks of text: who it is, each group of identical stacks, every rank's state.

        ``known``: what the heartbeats tell of each rank. Takes ``BUDGET_S``, with py-spy ``PYSPY_TIMEOUT_S`` more.
        """
        texts = await self.dump(alive)
        snapshots = {rank: parse_faulthandler(stackdump.without_our_frames(text)) for rank, text in texts.items()}
        missing = [rank for rank, snapshot in snapshots.items() if not snapshot.main]
        snapshots.update(await self._ask_pyspy({rank: alive[rank][1].pid for rank in missing}))
        evidence = [_complete(one, alive, snapshots) for _, one in sorted(known.items())]
        suspicion = suspects.suspect(evidence)
        blocks = tuple(suspects.render(suspicion, evidence))
        return Findings(suspicion.rank, suspicion.why, blocks, tuple(evidence))

    async def dump(self, alive: Alive) -> dict[int, str]:
        """The text of each rank's dump, empty where there is none; at most BUDGET_S."""
        asked = {}
        for rank, (local_rank, worker) in alive.items():
            # Without the handler the signal would kill, so the kernel is asked first. A stopped rank cannot answer.
            held = proctree.is_stopped(worker.pid, or_traced=True)
            if not held and proctree.has_handler(worker.pid, stackdump.DUMP_SIGNAL):
                self._dumps.clear(local_rank)
                worker.signal(stackdump.DUMP_SIGNAL)
                asked[rank] = local_rank
        deadline = clock.monotonic() + BUDGET_S
        while clock.monotonic() < deadline and not all(self._complete(local) for local in asked.values()):  # noqa: ASYNC110
            # A signal handler in another process tells nobody when it is done; its text does.
            await asyncio.sleep(_PAUSE_S)
        return {rank: self._text(asked[rank]) if rank in asked else "" for rank in alive}

    async def _ask_pyspy(self, pids: Mapping[int, int]) -> dict[int, StackSnapshot]:
        program = shutil.which("py-spy", path=self._environment.get("PATH")) if pids else None
        if program is None:
            return {}
        asked = (_look_with_pyspy(program, pid, self._environment) for pid in pids.values())
        found = dict(zip(pids, await asyncio.gather(*asked), strict=True))
        return {rank: snapshot for rank, snapshot in found.items() if snapshot.main}

    def _complete(self, local_rank: int) -> bool:
        return stackdump.is_complete(self._text(local_rank))

    def _text(self, local_rank: int) -> str:
        return self._dumps.read(local_rank).decode("utf-8", "replace")


def _complete(one: RankEvidence, alive: Alive, snapshots: Mapping[int, StackSnapshot]) -> RankEvidence:
    if one.rank not in alive:
        return one
    pid = alive[one.rank][1].pid
    entry = proctree.read_entry(pid)
    wait = procstate.read_wait(pid)
    return replace(
        one,
        snapshot=snapshots.get(one.rank, StackSnapshot()),
        state=entry.state if entry is not None else "",
        waits_in=wait.wchan or ", ".join(wait.stack[:3]),
    )


async def _look_with_pyspy(program: str, pid: int, environment: Mapping[str, str]) -> StackSnapshot:
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = await bystanders.run_bounded(argv, environment, PYSPY_TIMEOUT_S, keep_bytes=_PYSPY_BYTES)
    except SpawnError:
        return StackSnapshot()
    return parse_pyspy(done.tail.decode("utf-8", "replace")) if done.exit_code == 0 else StackSnapshot()


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
