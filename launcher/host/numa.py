"""``--numa-binding``: the CPUs each rank may run on, worked out from /sys (sysfs(5)).

As in torchrun, a rank belongs to the GPU of its own number, and that GPU to a NUMA node. Without GPUs, or where the
node of a GPU is not known, ranks are spread over the nodes in order. Only CPUs that this process itself may use are
given out. What cannot be worked out leaves ranks unbound and says so in one line; it never stops a job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftlaunch.launcher.config import Config
from ftlaunch.launcher.host.visible import entries

SYS = Path("/sys")


@dataclass(frozen=True)
class Binding:
    """CPUs by local rank, ``None`` for a rank that is left unbound, and what the user should know."""

    cpus: tuple[frozenset[int] | None, ...]
    notes: tuple[str, ...] = ()


def affinity(config: Config, root: Path = SYS, allowed: Collection[int] | None = None) -> Binding:
    """The binding of this node's ranks. Costs a few file reads per CPU, and an NVML start where there are GPUs."""
    workers = config.workers
    if workers.numa_binding is None:
        return Binding((None,) * workers.nproc)
    from ftlaunch.launcher.host.devices import gpu_table, select

    chosen = entries(config.environment) if workers.gpus is None else workers.gpus
    addresses = [gpu.pci for gpu in select(chosen, gpu_table())]
    usable = os.sched_getaffinity(0) if allowed is None else allowed
    return bind(workers.numa_binding, workers.nproc, addresses, frozenset(usable), root)


def bind(mode: str, nproc: int, gpus: Sequence[str], allowed: frozenset[int], root: Path = SYS) -> Binding:
    """Decide for ``nproc`` ranks. ``gpus`` are the PCI addresses of the visible GPUs, in CUDA's order."""
    nodes = _usable_nodes(root, allowed)
    if not nodes:
        return Binding((None,) * nproc, (f"--numa-binding {mode}: no NUMA nodes below {root}; ranks are not bound",))
    homes, notes = _homes(nproc, gpus, nodes, root)
    if mode == "exclusive":
        notes += _too_few_cores(homes, nodes, root)
    cpus = tuple(_MODES[mode](rank, homes, nodes, root) for rank in range(nproc))
    return Binding(cpus, tuple(f"--numa-binding {mode}: {note}" for note in notes))


def _homes(
    nproc: int, gpus: Sequence[str], nodes: Mapping[int, frozenset[int]], root: Path
) -> tuple[list[int | None], list[str]]:
    """The node of each slot: one per rank, and one per GPU that no rank uses, whose share of CPUs stays free."""
    ordered = sorted(nodes)
    if not gpus:
        return [ordered[rank * len(ordered) // nproc] for rank in range(nproc)], []
    found = [_node_of_gpu(address, ordered, root) for address in gpus]
    if None in found:
        spread = [ordered[rank * len(ordered) // nproc] for rank in range(nproc)]
        return list(spread), [f"the NUMA node of GPU {found.index(None)} is not known; ranks are spread over all nodes"]
    homes = [found[slot % len(found)] for slot in range(max(nproc, len(found)))]
    foreign = sorted({home for home in homes[:nproc] if home is not None and home not in nodes})
    notes = [f"no CPU of NUMA node {foreign[0]} may be used here; its ranks are not bound"] if foreign else []
    return [home if home in nodes else None for home in homes], notes


def _node_of_gpu(address: str, ordered: Sequence[int], root: Path) -> int | None:
    node = _number(root / "bus/pci/devices" / address / "numa_node") if address else None
    # -1 means that the firmware does not say, which is normal where there is only one node.
    if node is None or node < 0:
        return ordered[0] if len(ordered) == 1 else None
    return node


def _whole_node(
    rank: int, homes: Sequence[int | None], nodes: Mapping[int, frozenset[int]], root: Path
) -> frozenset[int] | None:
    home = homes[rank]
    return None if home is None else nodes[home]


def _whole_socket(
    rank: int, homes: Sequence[int | None], nodes: Mapping[int, frozenset[int]], root: Path
) -> frozenset[int] | None:
    home = homes[rank]
    if home is None:
        return None
    socket = _socket(nodes[home], root)
    if socket is None:
        return nodes[home]
    return frozenset().union(*(cpus for cpus in nodes.values() if _socket(cpus, root) == socket))


def _share_of_cores(
    rank: int, homes: Sequence[int | None], nodes: Mapping[int, frozenset[int]], root: Path
) -> frozenset[int] | None:
    """An even share of the node's cores; the first slots get one more when it does not come out even."""
    home = homes[rank]
    if home is None:
        return None
    cores = _cores(nodes[home], root)
    place, slots = _place(rank, homes)
    if len(cores) < slots:
        return cores[place % len(cores)]
    each, extra = divmod(len(cores), slots)
    start = place * each + min(place, extra)
    return frozenset().union(*cores[start : start + each + (place < extra)])


def _too_few_cores(homes: Sequence[int | None], nodes: Mapping[int, frozenset[int]], root: Path) -> list[str]:
    for home in sorted({home for home in homes if home is not None}):
        cores, slots = len(_cores(nodes[home], root)), homes.count(home)
        if cores < slots:
            return [f"NUMA node {home} has {cores} cores for {slots} ranks; they share them"]
    return []


def _core_complex(
    rank: int, homes: Sequence[int | None], nodes: Mapping[int, frozenset[int]], root: Path
) -> frozenset[int] | None:
    """The CPUs behind one last-level cache: the largest groups first, the next group for the next rank."""
    home = homes[rank]
    if home is None:
        return None
    groups = _grouped(nodes[home], lambda cpu: min(_cache_mates(cpu, root) or nodes[home]))
    groups.sort(key=lambda group: (-len(group), min(group)))
    return groups[_place(rank, homes)[0] % len(groups)]


_MODES = {
    "node": _whole_node,
    "socket": _whole_socket,
    "exclusive": _share_of_cores,
    "core-complex": _core_complex,
}


def _place(rank: int, homes: Sequence[int | None]) -> tuple[int, int]:
    """Which of the slots on its node this rank has, and how many there are."""
    peers = [slot for slot, home in enumerate(homes) if home == homes[rank]]
    return peers.index(rank), len(peers)


def _usable_nodes(root: Path, allowed: frozenset[int]) -> dict[int, frozenset[int]]:
    """CPUs by node; nodes without any CPU for us (memory only, or outside our cpuset) are left out."""
    nodes = {}
    for path in (root / "devices/system/node").glob("node[0-9]*"):
        cpus = parse_cpu_list(_read(path / "cpulist")) & allowed
        if cpus and path.name.removeprefix("node").isdecimal():
            nodes[int(path.name.removeprefix("node"))] = cpus
    return nodes


def _cpu(root: Path, cpu: int) -> Path:
    return root / f"devices/system/cpu/cpu{cpu}"


def _socket(cpus: frozenset[int], root: Path) -> int | None:
    return _number(_cpu(root, min(cpus)) / "topology/physical_package_id")


def _cores(cpus: frozenset[int], root: Path) -> list[frozenset[int]]:
    """Hardware threads by core, cores in order. A CPU whose siblings are unknown is a core of its own."""

    def core(cpu: int) -> int:
        return min(parse_cpu_list(_read(_cpu(root, cpu) / "topology/thread_siblings_list")) or {cpu})

    return sorted(_grouped(cpus, core), key=min)


def _cache_mates(cpu: int, root: Path) -> frozenset[int]:
    """All CPUs that share this one's highest data cache; empty when that is not known."""
    best, mates = -1, frozenset[int]()
    for index in (_cpu(root, cpu) / "cache").glob("index[0-9]*"):
        level = _number(index / "level")
        if _read(index / "type") in {"Unified", "Data"} and level is not None and level > best:
            best, mates = level, parse_cpu_list(_read(index / "shared_cpu_list"))
    return mates


def _grouped(cpus: frozenset[int], key: Callable[[int], Hashable]) -> list[frozenset[int]]:
    groups: dict[Hashable, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), set()).add(cpu)
    return [frozenset(group) for group in groups.values()]


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's ``0-3,8`` as numbers; empty for anything else (cpuset(7), "List format")."""
    cpus: set[int] = set()
    try:
        for part in text.split(",") if text else ():
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(cpus)


def _number(path: Path) -> int | None:
    try:
        return int(_read(path))
    except ValueError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
