"""What is to go wrong, and when, as frozen values; and how what is left to chance is chosen. Pure."""

from __future__ import annotations

import enum
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.launcher.errors import UsageError

RANDOM = "random"
MAX_FAULTS = 1000


class PlanError(UsageError):
    """A plan or a fault that makes no sense. One line: what is wrong and what would be right. Caught in ``main``."""


class Kind(enum.Enum):
    """What goes wrong."""

    KILL = "kill"
    """A rank gets SIGKILL."""
    STOP = "stop"
    """A rank gets SIGSTOP."""
    SPIN = "spin"
    """A rank runs in an endless loop."""
    EXCEPTION = "exception"
    """A rank raises."""
    OOM = "oom"
    """A rank uses memory until the kernel kills it, in a control group of its own with a small limit."""
    DISK_FULL = "disk-full"
    """A rank can write to no file any more (RLIMIT_FSIZE, setrlimit(2)): its next save fails."""
    AGENT_KILL = "agent-kill"
    """A node's agent gets SIGKILL."""
    NODE_LOSS = "node-loss"
    """Everything of a node is gone at once: agent, guardian, ranks."""
    NET_CUT = "net-cut"
    """A node reaches etcd no more, for a while."""
    ETCD_STOP = "etcd-stop"
    """etcd stands still for a while."""


RANK_KINDS = frozenset({Kind.KILL, Kind.STOP, Kind.SPIN, Kind.EXCEPTION, Kind.OOM, Kind.DISK_FULL})
IN_RANK = frozenset({Kind.SPIN, Kind.EXCEPTION, Kind.OOM})
"""Those that only the rank itself can bring about."""
RANDOM_KINDS = (Kind.KILL, Kind.STOP, Kind.EXCEPTION)


@dataclass(frozen=True)
class Range:
    """A number left to chance, both ends included."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}..{self.most}"


@dataclass(frozen=True)
class Fault:
    """One fault. At most one of ``at_step``, ``after_steps`` and ``after_s``; none of them: at the next step."""

    kind: Kind
    one_of: tuple[Kind, ...] = ()
    """The kind is one of these, until :func:`settle`."""
    id: str = ""
    rank: int | str | None = None
    """Global; :data:`RANDOM` until :func:`settle`. For what happens to a node: the rank whose steps count."""
    node: int | None = None
    at_step: int | Range | None = None
    """The script's own number, as told with ``heartbeat.beat(step)``; else as ``after_steps``."""
    after_steps: int | Range | None = None
    """So many steps of the rank's process, whatever their numbers."""
    after_s: float | None = None
    every_s: float | None = None
    times: int = 1
    hold_s: float = 0.0
    """How long it lasts, where it ends by itself; how long a lost node stays away."""
    detect_s: float | None = None
    recover_s: float | None = None

    @property
    def target(self) -> str:
        """Whom it hits, in words."""
        if self.kind in RANK_KINDS:
            return f"rank {self.rank}"
        return "etcd" if self.kind is Kind.ETCD_STOP else f"node {self.node or 0}"

    @property
    def moment(self) -> str:
        """When, in words."""
        if self.at_step is not None:
            return f"at step {self.at_step}"
        if self.after_steps is not None:
            return f"after {self.after_steps} steps"
        if self.every_s is not None:
            return f"every {self.every_s:g} s"
        return f"after {self.after_s:g} s" if self.after_s else "at once"


@dataclass(frozen=True)
class Plan:
    """Faults in the order in which they happen, each after the job has recovered from the one before."""

    faults: tuple[Fault, ...] = ()
    seed: int | None = None
    margin_s: float | None = None
    recover_s: float | None = None


@dataclass(frozen=True)
class Place:
    """What a plan is to be carried out on."""

    ranks: int
    nodes: int = 1


def require_sense(fault: Fault) -> None:
    """Raise :class:`PlanError` for what contradicts itself."""
    kind = fault.kind
    if sum(each is not None for each in (fault.at_step, fault.after_steps, fault.after_s)) > 1:
        raise PlanError("only one of step, after_steps and after can be given")
    if kind in RANK_KINDS and fault.rank is None:
        raise PlanError(f"{kind.value} happens to a rank: say which one, or rank: {RANDOM}")
    if kind in RANK_KINDS and fault.node is not None:
        raise PlanError(f"{kind.value} happens to a rank, not to a node: give its number as rank")
    if fault.every_s is not None and (fault.at_step is not None or fault.after_steps is not None):
        raise PlanError("every goes by time: it cannot be given with step or after_steps")
    if fault.times > 1 and fault.at_step is not None:
        raise PlanError("a step comes once: times goes with every or after_steps")
    if fault.times > MAX_FAULTS:
        raise PlanError(f"times is at most {MAX_FAULTS}")


def make_random(count: int, kinds: Collection[Kind], steps: Range) -> Plan:
    """A plan of ``count`` faults of ranks, each so many steps after the job has recovered; :func:`settle` chooses.

    Raises :class:`PlanError` for kinds that do not happen to ranks.
    """
    unfit = sorted(kind.value for kind in kinds if kind not in RANK_KINDS)
    if unfit or not kinds:
        raise PlanError(f"{unfit[0] if unfit else 'nothing'} does not happen to a rank: only faults of ranks are drawn")
    if not 1 <= count <= MAX_FAULTS:
        raise PlanError(f"from 1 to {MAX_FAULTS} faults can be drawn, not {count}")
    ordered = tuple(sorted(kinds, key=lambda kind: kind.value))
    return Plan(tuple(Fault(ordered[0], ordered, rank=RANDOM, after_steps=steps) for _ in range(count)))


def settle(plan: Plan, place: Place, seed: int) -> Plan:
    """Choose everything that was left to chance, repeat what is to be repeated, and give all faults their names.

    The same plan, place and seed give the same faults. Raises :class:`PlanError` for a rank or node that is not there.
    """
    chance = random.Random(seed)
    settled = [_choose(turn, place, chance) for fault in plan.faults for turn in _turns(fault)]
    if len(settled) > MAX_FAULTS:
        raise PlanError(f"{len(settled)} faults with all repetitions, at most {MAX_FAULTS} are allowed")
    named = tuple(
        replace(fault, id=f"{number}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', fault.id) or fault.kind.value}")
        for number, fault in enumerate(settled, start=1)
    )
    for fault in named:
        _require_place(fault, place)
    return replace(plan, faults=named, seed=seed)


def _turns(fault: Fault) -> Sequence[Fault]:
    """A repeated fault as so many single ones; ``every`` counts from the recovery of the one before."""
    again = replace(fault, times=1, every_s=None, after_s=fault.after_s if fault.every_s is None else fault.every_s)
    first = replace(again, after_s=again.after_s if fault.after_s is None else fault.after_s)
    return [first, *[again] * (min(fault.times, MAX_FAULTS + 1) - 1)]


def _choose(fault: Fault, place: Place, chance: random.Random) -> Fault:
    return replace(
        fault,
        kind=chance.choice(fault.one_of) if fault.one_of else fault.kind,
        one_of=(),
        rank=chance.randrange(place.ranks) if fault.rank == RANDOM else fault.rank,
        at_step=_drawn(fault.at_step, chance),
        after_steps=_drawn(fault.after_steps, chance),
    )


def _drawn(number: int | Range | None, chance: random.Random) -> int | None:
    return chance.randint(number.least, number.most) if isinstance(number, Range) else number


def _require_place(fault: Fault, place: Place) -> None:
    if isinstance(fault.rank, int) and fault.rank >= place.ranks:
        raise PlanError(f"fault {fault.id}: there is no rank {fault.rank}, only {_span(place.ranks)}")
    if fault.node is not None and fault.node >= place.nodes:
        raise PlanError(f"fault {fault.id}: there is no node {fault.node}, only {_span(place.nodes)}")
    if fault.kind in (Kind.NET_CUT, Kind.ETCD_STOP) and place.nodes < 2:
        raise PlanError(f"fault {fault.id}: {fault.kind.value} needs a drill of several nodes: --nodes 2")


def _span(count: int) -> str:
    return "0" if count == 1 else f"0 to {count - 1}"


def to_json(fault: Fault) -> dict[str, Any]:
    """What :func:`ftlaunch.launcher.drill.plan_file.fault_from` reads, of a fault that leaves nothing to chance."""
    found: dict[str, Any] = {
        "kind": fault.kind.value,
        "id": fault.id or None,
        "rank": fault.rank,
        "node": fault.node,
        "step": fault.at_step,
        "after_steps": fault.after_steps,
        "after": fault.after_s,
        "every": fault.every_s,
        "times": fault.times,
        "for": fault.hold_s,
        "detect": fault.detect_s,
        "recover": fault.recover_s,
    }
    return {key: value for key, value in found.items() if value is not None}


def join(plans: Sequence[Plan]) -> Plan:
    """One after the other; each setting from the first that has it."""
    return Plan(
        tuple(fault for plan in plans for fault in plan.faults),
        next((plan.seed for plan in plans if plan.seed is not None), None),
        next((plan.margin_s for plan in plans if plan.margin_s is not None), None),
        next((plan.recover_s for plan in plans if plan.recover_s is not None), None),
    )
