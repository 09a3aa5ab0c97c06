"""Collects what all ranks are doing, in a few hundred milliseconds, before any of them is killed.

Split so that the agent can wait as it likes: :meth:`Collection.ask` signals, :meth:`Collection.complete` is asked again
until it is true or the time is over, :meth:`Collection.unanswered` says for whom py-spy is worth a try, and
:func:`examine` turns everything into a suspect and text. Nothing here waits, and nothing touches the user's files.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence

from ftlaunch.heartbeat import procstate, stackdump
from ftlaunch.heartbeat.procstate import KernelWait, ProcState
from ftlaunch.heartbeat.stackread import StackSnapshot, parse_faulthandler, parse_pyspy
from ftlaunch.heartbeat.suspects import RankEvidence, Suspicion, blame_silence, render, suspect
from ftlaunch.heartbeat.tracks import Track, Tracks

BUDGET_S = 0.5
"""Longest wait for answers that is worth it."""
PAUSE_S = 0.01
"""Between two calls of :meth:`Collection.complete`: a memory file tells nobody that it was written to."""
_MAX_OTHER_THREADS_CHARS = 16_000


class Collection:
    """Stacks of the ranks of this node, by local rank."""

    def __init__(self, states: Mapping[int, ProcState]) -> None:
        """``states``: a fresh look at every living rank."""
        self.states = states
        self.asked: set[int] = set()
        self._texts: dict[int, str] = {}
        self._snapshots: dict[int, StackSnapshot] = {}

    def ask(self, send: Callable[[int, int], None], clear: Callable[[int], None]) -> None:
        """Have every rank that can dump its stacks do so: ``clear(local_rank)`` its file, ``send(pid, signal)``.

        Not sent to a process without the handler, which would die of it, nor to a stopped one, which would answer
        only after it was continued.
        """
        for local_rank, state in self.states.items():
            if stackdump.is_armed(state.caught) and state.state not in "TtZX":
                clear(local_rank)
                try:
                    send(state.pid, stackdump.DUMP_SIGNAL)
                except OSError:
                    continue
                self.asked.add(local_rank)

    def complete(self, read: Callable[[int], bytes]) -> bool:
        """Read what was written so far; true when every rank that was asked has finished.

        A rank in state D is not waited for: it runs no handler.
        """
        done = True
        for local_rank in self.asked:
            text = read(local_rank).decode("utf-8", "replace")
            settled = stackdump.is_complete(text) or (bool(text) and text == self._texts.get(local_rank))
            self._texts[local_rank] = text
            if settled and local_rank not in self._snapshots:
                self._note(local_rank, parse_faulthandler(text))
            if local_rank not in self._snapshots and self.states[local_rank].state != "D":
                done = False
        return done

    def unanswered(self) -> dict[int, int]:
        """Pids by local rank that left no stack."""
        return {rank: state.pid for rank, state in self.states.items() if rank not in self._snapshots}

    def take_pyspy(self, local_rank: int, text: str) -> None:
        """What ``py-spy dump`` said about a rank."""
        self._note(local_rank, parse_pyspy(text))

    def snapshot(self, local_rank: int) -> StackSnapshot:
        """The stacks of a rank; without threads if it did not answer."""
        if local_rank not in self._snapshots and self._texts.get(local_rank):
            # Still being written when the time was over.
            return parse_faulthandler(self._texts[local_rank])
        return self._snapshots.get(local_rank, StackSnapshot())

    def _note(self, local_rank: int, snapshot: StackSnapshot) -> None:
        if snapshot.threads:
            self._snapshots[local_rank] = snapshot


def pyspy_command(pid: int) -> list[str] | None:
    """The command that dumps a process, or ``None`` without py-spy on PATH. To be run with a time-out."""
    import shutil

    program = shutil.which("py-spy")
    return [program, "dump", "--nonblocking", "--pid", str(pid)] if program is not None else None


def read_waits(states: Mapping[int, ProcState], root: str = procstate.PROC) -> dict[int, KernelWait]:
    """Where each rank sleeps in the kernel, as far as this user may know."""
    return {local_rank: procstate.read_wait(state.pid, root) for local_rank, state in states.items()}


def gather(tracks: Tracks, collection: Collection, waits: Mapping[int, KernelWait], now: float) -> list[RankEvidence]:
    """What is known of each rank of this node."""
    return [_of_rank(track, tracks.first_rank, collection, waits, now) for track in tracks.ranks]


def examine(
    tracks: Tracks, collection: Collection, waits: Mapping[int, KernelWait], now: float
) -> tuple[Suspicion, tuple[str, ...]]:
    """The suspect, and text for the incident: groups, states, kernel stacks, all threads of the suspects."""
    evidence = gather(tracks, collection, waits, now)
    suspicion = suspect(evidence)
    if not any(one.snapshot.threads for one in evidence):
        aborted = [one.rank for one in evidence if one.exit_code == -signal.SIGABRT]
        if aborted:
            suspicion = blame_silence(evidence, aborted)
    blocks = render(suspicion, evidence)
    for one in evidence:
        wait = waits.get(one.rank - tracks.first_rank, KernelWait())
        if wait.stack and one.rank in suspicion.ranks:
            blocks.append("\n".join([f"rank {one.rank}, kernel stack:", *(f"  {line}" for line in wait.stack)]))
    blocks += [_threads_block(one) for one in evidence if one.rank in suspicion.ranks and len(one.snapshot.threads) > 1]
    return suspicion, tuple(blocks)


def blame(tracks: Tracks, now: float, aborted: Sequence[int]) -> Suspicion:
    """Who made the others wait, from ages of progress alone. ``aborted``: local ranks that ended by SIGABRT."""
    evidence = gather(tracks, Collection({}), {}, now)
    return blame_silence(evidence, [tracks.first_rank + local_rank for local_rank in aborted])


def _of_rank(
    track: Track, first_rank: int, collection: Collection, waits: Mapping[int, KernelWait], now: float
) -> RankEvidence:
    state = collection.states.get(track.local_rank)
    wait = waits.get(track.local_rank, KernelWait())
    return RankEvidence(
        rank=first_rank + track.local_rank,
        snapshot=collection.snapshot(track.local_rank),
        state=state.state if state is not None else wait.state,
        waits_in=wait.wchan,
        progress_age_s=max(0.0, now - track.progress_at),
        steps=track.beats if track.step is None else track.step,
        section=track.section,
        exit_code=track.exit_code,
    )


def _threads_block(one: RankEvidence) -> str:
    text = one.snapshot.text.strip("\n")
    if len(text) > _MAX_OTHER_THREADS_CHARS:
        # The main thread comes last.
        text = "…\n" + text[-_MAX_OTHER_THREADS_CHARS:]
    return f"rank {one.rank}, all threads ({one.snapshot.source}):\n{text}"
