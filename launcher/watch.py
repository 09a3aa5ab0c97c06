"""The pulse that judges silence: about once a second, and sooner when the kernel reports a stopped rank.

The pulse also tells when the agent itself was paused (SIGSTOP, a starved host): it comes late then, and nobody's
silence during that time counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ftlaunch.heartbeat.limits import Limits
from ftlaunch.heartbeat.stalls import STOP_CONFIRM_S, WARN_AT, Exits, OsState, Stall, StallRules, assess, silences
from ftlaunch.heartbeat.tracks import Track
from ftlaunch.launcher import clock, proctree
from ftlaunch.launcher.config import HeartbeatConfig
from ftlaunch.launcher.process import WorkerProcess

PULSE_S = 0.8
LATE_S = 1.0
_NOTABLE = frozenset("TtDZ")


class Watch:
    """What the kernel says of each rank, and the judgement of all signs together."""

    def __init__(self, config: HeartbeatConfig, limits: Limits, tell: Callable[..., None]) -> None:
        self.os_states: dict[int, OsState] = {}
        self._limits = limits
        self._rules = StallRules(config.dstate_timeout_s, config.exit_barrier_timeout_s, config.ignore_stopped)
        self._tell = tell
        self._workers: Sequence[WorkerProcess] = ()
        self._pulse: Callable[[float], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._boottime_offset = clock.boottime() - clock.monotonic()
        self._pending_shift_s = 0.0
        self._warned: dict[int, float] = {}
        self._held: set[int] = set()
        self._reported = False

    def start(self, pulse: Callable[[float], None]) -> None:
        """Call ``pulse`` from now on."""
        self._pulse = pulse
        self._arm(PULSE_S)

    def stop(self) -> None:
        """No more pulses."""
        self._pulse = None
        if self._timer is not None:
            self._timer.cancel()

    def begin(self, workers: Sequence[WorkerProcess]) -> None:
        """A new generation: nothing of the old one counts."""
        self._workers = workers
        self.os_states = {}
        self._warned = {}
        self._held = set()
        self._reported = False

    def look(self) -> None:
        """Read the kernel's state of each rank; about 20 µs each. A stopped rank brings the next pulse forward."""
        now = clock.monotonic()
        for local_rank, worker in enumerate(self._workers):
            entry = proctree.read_entry(worker.pid) if worker.alive else None
            if entry is None or entry.state not in _NOTABLE:
                self.os_states.pop(local_rank, None)
                continue
            before = self.os_states.get(local_rank)
            since = before.since if before is not None and before.state == entry.state else now
            traced = entry.state in "tT" and (entry.state == "t" or proctree.is_traced(worker.pid))
            if entry.state == "T" and since == now:
                self._hasten(STOP_CONFIRM_S + 0.01)
            self.os_states[local_rank] = OsState(entry.state, since, traced, entry.state == "Z")

    def assess(self, tracks: Sequence[Track], now: float) -> Stall | None:
        """The stall to act on, once per generation; warns of silences that come near their limit."""
        self._forgive(tracks)
        if self._reported or not tracks:
            return None
        self.look()
        exits = self._exits()
        stalls = assess(tracks, self._limits, self.os_states, self._rules, exits, now)
        for stall in stalls:
            if self._is_traced(stall, tracks, now):
                continue
            self._reported = True
            return stall
        self._warn(tracks, exits, now)
        return None

    def _exits(self) -> Exits:
        done = [worker for worker in self._workers if worker.exit_code == 0]
        firsts = [worker.exited_at for worker in done if worker.exited_at is not None]
        ranks = frozenset(i for i, worker in enumerate(self._workers) if not worker.alive)
        return Exits(ranks, min(firsts, default=None))

    def _is_traced(self, stall: Stall, tracks: Sequence[Track], now: float) -> bool:
        """A rank under a debugger is never killed for its silence, nor are those that wait for it."""
        traced = [i for i, worker in enumerate(self._workers) if worker.alive and proctree.is_traced(worker.pid)]
        if not traced or (stall.kind == "stopped" and stall.local_rank not in traced):
            return False
        for track in tracks:
            track.shift(max(0.0, now - track.alive_since))
        for local_rank in set(traced) - self._held:
            self._tell(
                "stall_held",
                reason=f"local rank {local_rank} is being traced (debugger, strace): its silence does not count",
                local_rank=local_rank,
                say=True,
            )
        self._held.update(traced)
        return True

    def _warn(self, tracks: Sequence[Track], exits: Exits, now: float) -> None:
        for local_rank, silence in silences(tracks, self._limits, exits).items():
            used = silence.used(now)
            level = max((mark for mark in WARN_AT if used >= mark), default=0.0)
            if level > self._warned.get(local_rank, 0.0):
                seconds = f"{now - silence.since:.1f} s of {silence.limit.seconds:.1f} s ({silence.limit.origin})"
                self._tell(
                    "silence",
                    reason=f"local rank {local_rank}: no progress in '{silence.name}' for {seconds}",
                    local_rank=local_rank,
                    used=round(used, 2),
                    say=silence.limit.seconds >= 10.0,
                )
            self._warned[local_rank] = level

    def _forgive(self, tracks: Sequence[Track]) -> None:
        if self._pending_shift_s > 0:
            for track in tracks:
                track.shift(self._pending_shift_s)
            self.os_states = {}
            self._pending_shift_s = 0.0

    def _arm(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._due = clock.monotonic() + delay_s
        self._timer = loop.call_later(delay_s, self._on_timer)

    def _hasten(self, delay_s: float) -> None:
        if self._pulse is not None and self._due - clock.monotonic() > delay_s:
            self._arm(delay_s)

    def _on_timer(self) -> None:
        now = clock.monotonic()
        late_s = now - self._due
        offset = clock.boottime() - now
        if offset - self._boottime_offset > LATE_S:
            # CLOCK_MONOTONIC stood still meanwhile (clock_gettime(2)), and with it every limit: only worth a record.
            self._tell("machine_suspended", reason=f"the machine slept for {offset - self._boottime_offset:.0f} s")
        self._boottime_offset = offset
        if late_s > LATE_S:
            self._pending_shift_s = late_s + PULSE_S
            self._tell("agent_paused", reason=f"the agent was paused for {late_s:.1f} s; limits are extended by that")
        if self._pulse is not None:
            self._pulse(now)
            self._arm(PULSE_S)
