"""--numa-binding on made-up machines below a folder that stands for /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.launcher.cli import command_line
from ftlaunch.launcher.host import numa
from support.machines import machine

# Two sockets with two nodes each; a node has 4 cores of 2 threads (c and c + 16) behind two caches.
NODES, CORES_PER_NODE, CORES = 4, 4, 16
EVERY = frozenset(range(2 * CORES))
GPU = ["0000:10:00.0", "0000:11:00.0", "0000:30:00.0", "0000:31:00.0"]
GPU_NODES = [0, 0, 3, 3]


def write(root: Path, path: str, text: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    for core in range(CORES):
        node, pair = core // CORES_PER_NODE, core - core % 2
        for cpu in (core, core + CORES):
            base = f"devices/system/cpu/cpu{cpu}"
            write(tmp_path, f"{base}/topology/physical_package_id", node // 2)
            write(tmp_path, f"{base}/topology/thread_siblings_list", f"{core},{core + CORES}")
            write(tmp_path, f"{base}/cache/index0/level", 1)
            write(tmp_path, f"{base}/cache/index0/type", "Data")
            write(tmp_path, f"{base}/cache/index0/shared_cpu_list", f"{core},{core + CORES}")
            write(tmp_path, f"{base}/cache/index1/level", 9)
            write(tmp_path, f"{base}/cache/index1/type", "Instruction")
            write(tmp_path, f"{base}/cache/index1/shared_cpu_list", f"{core}")
            write(tmp_path, f"{base}/cache/index3/level", 3)
            write(tmp_path, f"{base}/cache/index3/type", "Unified")
            write(tmp_path, f"{base}/cache/index3/shared_cpu_list", f"{pair}-{pair + 1},{pair + 16}-{pair + 17}")
    for node in range(NODES):
        first = node * CORES_PER_NODE
        write(tmp_path, f"devices/system/node/node{node}/cpulist", f"{first}-{first + 3},{first + 16}-{first + 19}")
    write(tmp_path, "devices/system/node/node9/cpulist", "")
    for address, node in zip(GPU, GPU_NODES, strict=True):
        write(tmp_path, f"bus/pci/devices/{address}/numa_node", node)
    return tmp_path


def node_cpus(node: int) -> set[int]:
    first = node * CORES_PER_NODE
    return {*range(first, first + 4), *range(first + 16, first + 20)}


def cores(*numbers: int) -> set[int]:
    return {cpu for number in numbers for cpu in (number, number + CORES)}


@pytest.mark.parametrize(
    ("mode", "nproc", "gpus", "expected"),
    [
        ("node", 4, GPU, [node_cpus(0), node_cpus(0), node_cpus(3), node_cpus(3)]),
        ("socket", 3, GPU, [node_cpus(0) | node_cpus(1)] * 2 + [node_cpus(2) | node_cpus(3)]),
        ("exclusive", 4, GPU, [cores(0, 1), cores(2, 3), cores(12, 13), cores(14, 15)]),
        # The share of a GPU without a rank stays free, as in torchrun.
        ("exclusive", 1, GPU, [cores(0, 1)]),
        ("core-complex", 4, GPU, [cores(0, 1), cores(2, 3), cores(12, 13), cores(14, 15)]),
        # More ranks than GPUs: they start over.
        ("node", 5, GPU[:2], [node_cpus(0)] * 5),
        ("exclusive", 3, GPU[:1], [cores(0, 1), cores(2), cores(3)]),
        # Without GPUs ranks are spread, neighbours together.
        ("node", 4, [], [node_cpus(0), node_cpus(1), node_cpus(2), node_cpus(3)]),
        ("node", 2, [], [node_cpus(0), node_cpus(2)]),
        ("exclusive", 8, [], [cores(2 * rank, 2 * rank + 1) for rank in range(8)]),
        ("core-complex", 8, [], [cores(2 * rank, 2 * rank + 1) for rank in range(8)]),
    ],
)
def test_modes(mode: str, nproc: int, gpus: list[str], expected: list[set[int]], sys_root: Path) -> None:
    assert numa.bind(mode, nproc, gpus, EVERY, sys_root) == numa.Binding(tuple(map(frozenset, expected)))


def test_only_cpus_we_may_use_are_given_out(sys_root: Path) -> None:
    allowed = frozenset({1, 2, 5, 17})
    found = numa.bind("node", 2, [], allowed, sys_root)
    assert found.cpus == (frozenset({1, 2, 17}), frozenset({5}))
    shares = numa.bind("exclusive", 2, GPU[:1], allowed, sys_root)
    assert shares.cpus == (frozenset({1, 17}), frozenset({2}))
    largest_first = numa.bind("core-complex", 1, [], frozenset({0, 2, 3}), sys_root)
    assert largest_first.cpus == (frozenset({2, 3}),)


@pytest.mark.parametrize(
    ("mode", "nproc", "gpus", "allowed", "note"),
    [
        ("exclusive", 2, GPU[:1], {0, 16}, "NUMA node 0 has 1 cores for 2 ranks; they share them"),
        ("node", 1, ["0000:99:00.0"], EVERY, "the NUMA node of GPU 0 is not known; ranks are spread"),
        ("node", 1, [""], EVERY, "the NUMA node of GPU 0 is not known"),
        ("node", 1, GPU[2:], {0, 1}, "no CPU of NUMA node 3 may be used here; its ranks are not bound"),
    ],
)
def test_what_cannot_be_done_well_is_one_line(
    mode: str, nproc: int, gpus: list[str], allowed: set[int], note: str, sys_root: Path
) -> None:
    found = numa.bind(mode, nproc, gpus, frozenset(allowed), sys_root)
    (line,) = found.notes
    assert line.startswith(f"--numa-binding {mode}: {note}")
    assert len(found.cpus) == nproc


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_no_topology_leaves_ranks_unbound(mode: str, tmp_path: Path) -> None:
    found = numa.bind(mode, 2, GPU, EVERY, tmp_path)
    assert found.cpus == (None, None)
    assert len(found.notes) == 1
    write(tmp_path, "devices/system/node/node0/cpulist", "0-1")
    bare = numa.bind(mode, 1, [], EVERY, tmp_path)
    assert bare == numa.Binding((frozenset({0, 1}),))


def test_one_node_needs_no_word_from_the_firmware(tmp_path: Path) -> None:
    write(tmp_path, "devices/system/node/node0/cpulist", "0-3")
    write(tmp_path, f"bus/pci/devices/{GPU[0]}/numa_node", -1)
    assert numa.bind("node", 1, GPU[:1], EVERY, tmp_path) == numa.Binding((frozenset(range(4)),))


def test_without_the_option_nothing_is_read(tmp_path: Path) -> None:
    config = command_line.parse(["--nproc-per-node", "2", "-m", "train"], {}, machine()).config
    assert numa.affinity(config, tmp_path / "nowhere") == numa.Binding((None, None))


def test_this_machine_is_bound_within_what_we_may_use() -> None:
    config = command_line.parse(
        ["--nproc-per-node", "2", "--numa-binding", "exclusive", "-m", "train"], {}, machine()
    ).config
    for cpus in numa.affinity(config, allowed={0, 1}).cpus:
        assert cpus is None or cpus <= {0, 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-2,4,6-7", {0, 1, 2, 4, 6, 7}), ("5", {5}), ("", set()), ("a-b", set()), ("3-", {3})],
)
def test_cpu_lists(text: str, expected: set[int]) -> None:
    assert numa.parse_cpu_list(text) == expected
