"""What goes wrong, and when: a pure function of seed and length.

The moments are those of the plan, on a clock that stands still while the job recovers; what a fault meets there (which
step, which process is just being started) is left to the machine and differs from run to run.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ftlaunch.launcher.journal.records import RECOVERY

NODES, RANKS, MEMBERS = 2, 2, 3
"""Nodes, ranks on each, members of etcd."""


class Deed(enum.Enum):
    """What goes wrong. Those of ranks that a rank does to itself happen at its next step."""

    RANK_KILL = "rank-kill"
    RANK_STOP = "rank-stop"
    RANK_SPIN = "rank-spin"
    RANK_RAISE = "rank-raise"
    RANK_OOM = "rank-oom"
    DISK_FULL = "disk-full"
    """Rank 0, which saves, can write to no file any more."""
    TRUNCATE = "truncate"
    """The newest checkpoint loses its second half; then a rank is killed."""
    STANDBY_KILL = "standby-kill"
    GUARDIAN_KILL = "guardian-kill"
    AGENT_KILL = "agent-kill"
    """A node's agent alone gets SIGKILL; it is started again."""
    AGENT_STOP = "agent-stop"
    """A node's agent alone stands still for a while (SIGSTOP), perhaps longer than its ranks may go on without it."""
    NODE_LOSS = "node-loss"
    """Everything of a node at once; it is started again."""
    NET_CUT = "net-cut"
    """A node's ways to all members of etcd carry nothing for a while."""
    LEADER_KILL = "etcd-leader-kill"
    """The leader of etcd gets SIGKILL; it is started again."""
    MEMBER_STOP = "etcd-member-stop"
    """A member of etcd stands still for a while (SIGSTOP)."""
    ETCD_STOP = "etcd-stop"
    """All of etcd stands still for a while."""


OF_NODE = frozenset({Deed.AGENT_KILL, Deed.NODE_LOSS})
_HOLD_S = {
    Deed.AGENT_KILL: (0.2, 3.0),
    Deed.AGENT_STOP: (0.3, 9.0),
    Deed.NODE_LOSS: (0.2, 8.0),
    Deed.NET_CUT: (1.0, 9.0),
    Deed.LEADER_KILL: (0.5, 4.0),
    Deed.MEMBER_STOP: (1.0, 6.0),
    Deed.ETCD_STOP: (0.5, 7.0),
}
_DURING = (
    (Deed.RANK_KILL, ("failure_detected", "workers_started")),
    (Deed.RANK_STOP, ("workers_started",)),
    (Deed.AGENT_KILL, ("failure_detected", "workers_stopped", "rendezvous_completed")),
    (Deed.AGENT_STOP, ("failure_detected", "rendezvous_completed")),
    (Deed.NODE_LOSS, ("failure_detected", "workers_stopped")),
    (Deed.LEADER_KILL, ("failure_detected", "workers_stopped")),
    (Deed.MEMBER_STOP, RECOVERY[:-1]),
    (Deed.STANDBY_KILL, ("workers_stopped", "gpu_reclaimed", "rendezvous_completed")),
    (Deed.NET_CUT, ("failure_detected", "workers_stopped")),
    (Deed.TRUNCATE, ("workers_stopped",)),
)
"""What happens while the job recovers from something else, and at which of its events."""
_FIRST_S, _CALM_S = 8.0, 6.0
_GAP_S, _GAP_OF_NODE_S = (2.0, 9.0), (8.0, 13.0)
_SPARED_FROM = 0.34
"""From this part of the time on the agent of node 0 is left alone, so that it shows whether anything in it grows."""


@dataclass(frozen=True)
class Strike:
    """One fault. ``at_s`` on the plan's clock; then ``delay_s`` after the next event ``during`` of any node, if named.

    ``hold_s``: how long it lasts, or until what was killed is started again.
    """

    number: int
    at_s: float
    deed: Deed
    node: int = 0
    local_rank: int = 0
    member: int = 0
    hold_s: float = 0.0
    during: str = ""
    delay_s: float = 0.0

    def __str__(self) -> str:
        where = f"node {self.node}"
        if self.deed in (Deed.LEADER_KILL, Deed.ETCD_STOP):
            where = "etcd"
        elif self.deed is Deed.MEMBER_STOP:
            where = f"member {self.member}"
        elif self.deed is Deed.DISK_FULL:
            where = "rank 0"
        elif self.deed.value.startswith("rank") or self.deed in (Deed.TRUNCATE, Deed.STANDBY_KILL):
            where += f" rank {self.local_rank}"
        hold = f", for {self.hold_s:.1f} s" if self.hold_s else ""
        during = f", {self.delay_s * 1000:.0f} ms after {self.during}" if self.during else ""
        return f"#{self.number} {self.at_s:6.1f} s  {self.deed.value} of {where}{during}{hold}"


def draw(seed: int, seconds: float) -> tuple[Strike, ...]:
    """The plan for so many seconds of chaos: single faults, several at once, and faults during a recovery."""
    chance = random.Random(seed)
    deeds = _in_turn(chance)
    found: list[Strike] = []
    at_s = _FIRST_S
    while at_s < seconds - _CALM_S:
        style = chance.choices(("single", "together", "during"), (4, 2, 4))[0]
        if style == "during":
            deed, moments = chance.choice(_DURING)
            group = [
                _strike(chance, at_s, chance.choice((Deed.RANK_KILL, Deed.RANK_RAISE))),
                replace(
                    _strike(chance, at_s, deed),
                    during=chance.choice(moments),
                    delay_s=round(chance.choice((0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.5))), 3),
                ),
            ]
        else:
            count = 1 if style == "single" else chance.randint(2, 3)
            group = [_strike(chance, at_s + chance.uniform(0, 0.6) * bool(n), next(deeds)) for n in range(count)]
        found += group
        of_node = any(strike.deed in OF_NODE for strike in group)
        at_s += chance.uniform(*(_GAP_OF_NODE_S if of_node else _GAP_S))
    spared = [_spare(strike) if strike.at_s > seconds * _SPARED_FROM else strike for strike in found]
    ordered = sorted(spared, key=lambda strike: strike.at_s)
    return tuple(replace(strike, number=number) for number, strike in enumerate(ordered, start=1))


def _spare(strike: Strike) -> Strike:
    return replace(strike, node=1) if strike.deed in OF_NODE else strike


def _in_turn(chance: random.Random) -> Iterator[Deed]:
    """All deeds in a random order, again and again: none is missing in a run that is long enough."""
    while True:
        yield from chance.sample(list(Deed), len(Deed))


def _strike(chance: random.Random, at_s: float, deed: Deed) -> Strike:
    least, most = _HOLD_S.get(deed, (0.0, 0.0))
    return Strike(
        0,
        round(at_s, 3),
        deed,
        node=chance.randrange(NODES),
        local_rank=chance.randrange(RANKS),
        member=chance.randrange(MEMBERS),
        hold_s=round(chance.uniform(least, most), 3),
    )


def describe(plan: Sequence[Strike]) -> list[str]:
    """One line each."""
    return [str(strike) for strike in plan]
