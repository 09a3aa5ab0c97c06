"""Memory groups and the kernel log, read from a tree that a test wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch.launcher.evidence.cgroups import Counters, Group, kills_all_at_once, locate, read_counters
from ftlaunch.launcher.evidence.kernel_log import (
    KernelLog,
    KilledProcess,
    open_kernel_log,
    parse_fault,
    parse_killed,
    parse_kills,
    pids_are_ours,
)
from ftlaunch.launcher.evidence.oom import OomFacts, OomKill, OomWatch, warn_of_group_kill

MIB = 1 << 20


class Tree:
    """A /proc with our process and one rank, and a hierarchy of groups."""

    def __init__(self, root: Path, mounts: str) -> None:
        self.proc = root / "proc"
        self.top = root / "cgroup tree"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text(mounts.format(top=str(self.top).replace(" ", "\\040")))

    def member(self, pid: int | str, line: str) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(line)

    def group(self, path: str, **files: object) -> Path:
        folder = self.top / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"memory.{name}").write_text(f"{text}\n")
        return folder


V2 = "25 20 0:22 / /proc rw - proc proc rw\n31 20 0:30 / {top} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
V1 = (
    "31 20 0:30 /docker/abc {top} rw - cgroup cgroup rw,memory\n"
    "32 20 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def events(**counts: int) -> str:
    named = {"low": 0, "high": 0, "max": 0, "oom": 0, "oom_kill": 0, "oom_group_kill": 0, **counts}
    return "".join(f"{name} {count}\n" for name, count in named.items())


@pytest.fixture
def v2(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path, V2)
    tree.group("")
    tree.group("pod", events=events(), max=512 * MIB, peak=100 * MIB)
    tree.group("pod/main", events=events(), max="max", peak=90 * MIB)
    tree.member(os.getpid(), "0::/pod/main\n")
    tree.member("self", "0::/pod/main\n")
    tree.member(4711, "0::/pod/main\n")
    return tree


def test_version_2_kill_with_the_limit_of_the_group_above(v2: Tree) -> None:
    watch = OomWatch(proc=str(v2.proc))
    watch.begin([4711])
    assert watch.look().kills == ()
    v2.group("pod", max=512 * MIB, peak=512 * MIB)
    v2.group("pod/main", events=events(max=7, oom_kill=2))
    facts = watch.look()
    assert facts.kills == (OomKill(v2.top / "pod/main", 2, 512 * MIB, 512 * MIB),)
    assert facts.of(4711) == facts.kills[0] and facts.of(1) is None
    watch.begin([4711])
    assert watch.look().kills == (), "only what happened in this generation counts"


def test_version_2_kill_without_any_limit_is_the_machines(v2: Tree) -> None:
    v2.group("pod", max="max")
    watch = OomWatch(proc=str(v2.proc))
    watch.begin([4711])
    v2.group("pod/main", events=events(oom_kill=1))
    assert watch.look().kills[0].whole_machine


def test_version_2_group_without_a_memory_controller_of_its_own(v2: Tree) -> None:
    v2.group("pod/main/leaf")
    v2.member(4712, "0::/pod/main/leaf\n")
    assert locate(4712, str(v2.proc)) == Group(v2.top / "pod/main", v2.top, 2)


def test_a_group_outside_of_our_namespace_is_not_guessed(v2: Tree) -> None:
    v2.member(4713, "0::/../../elsewhere\n")
    assert locate(4713, str(v2.proc)) is None


def test_groups_that_vanish_and_processes_that_do_not_exist(v2: Tree) -> None:
    watch = OomWatch(proc=str(v2.proc))
    watch.begin([4711, 99999])
    for path in (v2.top / "pod/main").iterdir():
        path.unlink()
    assert watch.look().kills == ()
    assert read_counters(Group(v2.top / "nowhere", v2.top, 2)) is None


def test_version_1_in_a_container_that_sees_its_own_part_of_the_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path, V1)
    unlimited = 9223372036854771712
    tree.group("", oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3", limit_in_bytes=64 * MIB, failcnt=1)
    tree.group("", max_usage_in_bytes=64 * MIB)
    tree.group("rank", oom_control="oom_kill 0", limit_in_bytes=unlimited, failcnt=0)
    for pid in (os.getpid(), 4711):
        tree.member(pid, "4:memory:/docker/abc\n0::/\n")
    tree.member(4712, "4:memory,hugetlb:/docker/abc/rank\n0::/\n")
    watch = OomWatch(proc=str(tree.proc))
    watch.begin([4711, 4712])
    tree.group("", oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4")
    tree.group("rank", failcnt=9)
    facts = watch.look()
    assert facts.of(4711) == OomKill(tree.top, 1, 64 * MIB, 64 * MIB)
    assert facts.of(4712) is None


def test_rank_that_has_moved_is_followed(v2: Tree) -> None:
    """What its new group had counted before it came is not its own; a group never seen before counts from nothing."""
    watch = OomWatch(proc=str(v2.proc))
    watch.begin([4711, 4712])
    v2.group("pod/step", events=events(oom_kill=5), max=64 * MIB, peak=64 * MIB)
    v2.member(4711, "0::/pod/step\n")
    watch.refresh()
    assert watch.look().of(4711) is None
    v2.group("pod/step", events=events(oom_kill=6))
    assert watch.look().of(4711) == OomKill(v2.top / "pod/step", 1, 64 * MIB, 64 * MIB)
    v2.group("pod/own", events=events(oom_kill=1), max=32 * MIB, peak=32 * MIB)
    v2.member(4711, "0::/pod/own\n")
    assert watch.look().of(4711) == OomKill(v2.top / "pod/own", 1, 32 * MIB, 32 * MIB)
    # The next generation goes to the same group: the kill of before was another rank's.
    watch.begin([4713])
    v2.member(4713, "0::/pod/own\n")
    assert watch.look().of(4713) is None


def test_version_1_shows_the_dead_in_the_root_group(tmp_path: Path) -> None:
    tree = Tree(tmp_path, V1.replace("/docker/abc", "/"))
    tree.group("", oom_control="oom_kill 7")
    tree.group("rank", oom_control="oom_kill 0", limit_in_bytes=64 * MIB, max_usage_in_bytes=64 * MIB)
    tree.member(4711, "4:memory:/rank\n")
    watch = OomWatch(proc=str(tree.proc))
    watch.begin([4711])
    tree.group("rank", oom_control="oom_kill 1")
    tree.member(4711, "4:memory:/\n")
    assert watch.look().of(4711) == OomKill(tree.top / "rank", 1, 64 * MIB, 64 * MIB)


def test_version_1_before_the_kernel_counted_kills(tmp_path: Path) -> None:
    tree = Tree(tmp_path, V1)
    tree.group("", oom_control="oom_kill_disable 0\nunder_oom 0", limit_in_bytes="nonsense")
    tree.member(1, "4:memory:/docker/abc\n")
    group = locate(1, str(tree.proc))
    assert group is not None and read_counters(group) == Counters()


def test_group_kill_is_warned_of_wherever_it_is_set(v2: Tree) -> None:
    assert warn_of_group_kill(str(v2.proc)) == ""
    (v2.top / "pod" / "memory.oom.group").write_text("1\n")
    warning = warn_of_group_kill(str(v2.proc))
    assert f"memory.oom.group is set at {v2.top}/pod" in warning and "singleProcessOOMKill" in warning
    (v2.top / "pod" / "memory.oom.group").write_text("0\n")
    assert warn_of_group_kill(str(v2.proc)) == ""
    assert kills_all_at_once(Group(v2.top, v2.top, 1)) is None


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    assert locate("self", str(tmp_path)) is None and warn_of_group_kill(str(tmp_path)) == ""
    watch = OomWatch(proc=str(tmp_path))
    watch.begin([1])
    assert watch.look() == OomFacts()


def test_the_log_tells_which_of_several_dead_it_was() -> None:
    group = Path("/g")
    kill = OomKill(group, 1, 64 * MIB, 64 * MIB)
    facts = OomFacts((kill,), (KilledProcess(42, "python", False, MIB),), {41: group, 42: group})
    assert facts.of(42) == OomKill(group, 1, 64 * MIB, 64 * MIB, False, MIB)
    assert facts.of(41) is None, "the only kill was another's"
    unnamed = OomFacts((kill,), (), {41: group, 42: group})
    assert unnamed.of(41) == unnamed.of(42) == kill


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Memory cgroup out of memory: Killed process 4711 (py (x) thon) total-vm:78764kB, anon-rss:69248kB, "
            "file-rss:6104kB, shmem-rss:0kB, UID:0 pgtables:192kB oom_score_adj:0",
            KilledProcess(4711, "py (x) thon", False, 69248 * 1024),
        ),
        (
            "Out of memory: Killed process 12 (python3) total-vm:1kB, anon-rss:2kB, file-rss:0kB",
            KilledProcess(12, "python3", True, 2048),
        ),
        ("Memory cgroup out of memory: Kill process 9 (a) score 1 or sacrifice child", KilledProcess(9, "a", False)),
        ("Out of memory (oom_kill_allocating_task): Killed process 3 (b)", KilledProcess(3, "b", True)),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=28850,uid=0", None),
        ("python invoked oom-killer: gfp_mask=0xcc0", None),
    ],
)
def test_kernel_lines_of_kills(line: str, expected: KilledProcess | None) -> None:
    assert parse_killed(line) == expected


def test_kernel_lines_before_a_kill_tell_the_limit() -> None:
    lines = [
        "memory: usage 65536kB, limit 65536kB, failcnt 3",
        "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a,task=python,pid=5,uid=0",
        "Memory cgroup out of memory: Killed process 5 (python) total-vm:1kB, anon-rss:2kB, file-rss:0kB",
        "Memory cgroup out of memory: Killed process 6 (python) total-vm:1kB, anon-rss:2kB, file-rss:0kB",
        "memory: usage 65536kB, limit 65536kB, failcnt 3",
        "Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:2kB, file-rss:0kB",
    ]
    kills = tuple(parse_kills(lines))
    assert [(kill.pid, kill.limit) for kill in kills] == [(5, 64 * MIB), (6, None), (7, None)]
    assert OomFacts(killed=kills).of(5) == OomKill(Path(), 1, 64 * MIB, None, False, 2048)


def test_kernel_lines_of_faults() -> None:
    line = (
        "pt_main_thread[4711]: segfault at 0 ip 00007f3 sp 00007ff error 4 in libtorch_cpu.so[7f00+100] likely on CPU 1"
    )
    assert parse_fault(line) == (4711, "libtorch_cpu.so")
    assert parse_fault("x[1]: segfault at 0 ip 0 sp 0 error 14") is None


def test_the_log_is_read_without_blocking_and_gaps_are_stepped_over(tmp_path: Path) -> None:
    assert open_kernel_log(str(tmp_path / "missing")) is None
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_DIRECT)
    log = KernelLog(reader)
    try:
        assert log.read_new() == []
        os.write(writer, b"6,339,5140900,-;first; with a semicolon\n SUBSYSTEM=pci\n")
        os.write(writer, b"4,340,5140901,-;second\xff\n")
        assert log.read_new() == ["first; with a semicolon", "second�"]
        os.close(writer)
        assert log.read_new() == []
    finally:
        log.close()


def test_pids_of_the_log_mean_nothing_in_a_container(tmp_path: Path) -> None:
    namespace = tmp_path / "pid"
    namespace.symlink_to("pid:[4026532999]")
    assert not pids_are_ours(str(namespace)) and not pids_are_ours(str(tmp_path / "none"))
    initial = tmp_path / "initial"
    initial.symlink_to("pid:[4026531836]")
    assert pids_are_ours(str(initial))
