"""What the kernel tells, from made-up trees like /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat.watching import procstate
from ftlaunch.heartbeat.watching.procstate import KernelWait, parse_stat, parse_status, read, read_wait

STATUS = """Name:\tpython
State:\tS (sleeping)
TracerPid:\t0
SigCgt:\t0000000100000002
voluntary_ctxt_switches:\t41
nonvoluntary_ctxt_switches:\t4
"""


DEFAULTS = {"parent": 1, "session": 0, "flags": 0x400040, "faults": 7, "cpu": 30, "reaped": 5, "threads": 1}


def stat_line(pid: int, name: str = "python", state: str = "S", **fields: int) -> str:
    given = {**DEFAULTS, **fields}
    head = f"{pid} ({name}) {state} {given['parent']} {pid} {given['session'] or pid} 0 -1 {given['flags']}"
    times = f"{given['faults']} 0 1 0 {given['cpu']} 2 {given['reaped']} 0 20 0 {given['threads']} 0 699551"
    return f"{head} {times} 0 0 18446744073709551615 0 0 0 0 0 0 0 16781312 2 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"


class Proc:
    """A directory that looks like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._path = root

    def add(self, pid: int, *, status: str = STATUS, children: tuple[int, ...] = (), **fields: object) -> None:
        folder = self._path / str(pid)
        line = stat_line(pid, **fields)  # type: ignore[arg-type]
        self.add_thread(pid, pid, line, children)
        (folder / "stat").write_text(line)
        (folder / "status").write_text(status)

    def add_thread(self, pid: int, thread: int, line: str, children: tuple[int, ...] = ()) -> None:
        task = self._path / str(pid) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "stat").write_text(line)
        (task / "children").write_text(" ".join(map(str, children)) + (" " if children else ""))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize("name", ["python", "a b", "a) S 1 1 (", "((()))", ""])
def test_stat_whatever_the_process_calls_itself(name: str) -> None:
    stat = parse_stat(stat_line(7, name, state="D", parent=3, session=5, threads=9))
    assert stat is not None
    assert (stat.state, stat.parent, stat.session, stat.threads, stat.start_ticks) == ("D", 3, 5, 9, 699551)
    assert (stat.faults, stat.cpu_ticks, stat.reaped_ticks, stat.exiting) == (8, 32, 5, False)


def test_an_exiting_task_is_known_by_its_flag() -> None:
    stat = parse_stat(stat_line(7, flags=0x40800C))
    assert stat is not None and stat.exiting


@given(st.text(max_size=200))
def test_any_text_is_survived(text: str) -> None:
    parse_stat(text)
    parse_status(text)
    parse_stat(stat_line(7)[: len(text)] + text)


def test_one_look(proc: Proc) -> None:
    proc.add(7)
    state = read(7, proc.root)
    assert state is not None
    assert (state.state, state.traced, state.switches, state.faults) == ("S", False, 41, 8)
    assert state.children_ticks is None
    assert read(8, proc.root) is None


@pytest.mark.parametrize(
    ("letter", "tracer", "traced"), [("S", 0, False), ("S", 12, True), ("t", 0, True), ("T", 0, False)]
)
def test_traced(proc: Proc, letter: str, tracer: int, traced: bool) -> None:
    proc.add(7, state=letter, status=STATUS.replace("TracerPid:\t0", f"TracerPid:\t{tracer}"))
    state = read(7, proc.root)
    assert state is not None and state.traced is traced


def test_missing_or_unreadable_status_is_no_error(proc: Proc) -> None:
    proc.add(7, status="")
    state = read(7, proc.root)
    assert state is not None and (state.tracer_pid, state.switches) == (0, 0)


def test_living_threads_of_a_zombie_main_thread(proc: Proc) -> None:
    proc.add(7, state="Z", threads=4)
    proc.add_thread(7, 8, stat_line(8, state="S"))
    proc.add_thread(7, 9, stat_line(9, state="R", flags=0x400044))
    proc.add_thread(7, 10, stat_line(10, state="Z"))
    state = read(7, proc.root)
    assert state is not None and state.living_threads == 1


def test_cpu_time_of_all_descendants(proc: Proc) -> None:
    proc.add(7, children=(8, 9), reaped=1)
    proc.add(8, children=(10,), cpu=100, reaped=10)
    proc.add(9, cpu=200, reaped=0)
    proc.add(10, cpu=300, reaped=0, children=(7, 99))
    state = read(7, proc.root, children=True)
    # 2 ticks of system time each.
    assert state is not None and state.children_ticks == 1 + 112 + 202 + 302


def test_where_a_process_sleeps(proc: Proc) -> None:
    proc.add(7, state="D")
    folder = Path(proc.root, "7")
    (folder / "wchan").write_text("rpc_wait_bit_killable")
    (folder / "stack").write_text("[<0>] rpc_wait+0x1/0x2\n[<0>] nfs_getattr+0x3/0x4\n")
    assert read_wait(7, proc.root) == KernelWait(
        "D", "rpc_wait_bit_killable", ("rpc_wait+0x1/0x2", "nfs_getattr+0x3/0x4")
    )
    state = read(7, proc.root)
    assert state is not None and state.waits_in == "rpc_wait_bit_killable"
    (folder / "wchan").write_text("0")
    assert read_wait(7, proc.root).wchan == ""
    assert read_wait(8, proc.root) == KernelWait()


@pytest.mark.parametrize(
    ("pid", "expected"),
    [
        (100, True),
        (101, True),  # a child
        (102, True),  # a grandchild that left the session
        (103, True),  # an orphan that stayed in it
        (104, False),  # an orphan that left it
        (105, False),  # of another rank
        (999, False),  # gone
        (1, False),
    ],
)
def test_who_belongs_to_a_rank(proc: Proc, pid: int, expected: bool) -> None:
    proc.add(1, parent=0)
    proc.add(50, parent=1)
    proc.add(100, parent=50)
    proc.add(101, parent=100, session=100)
    proc.add(102, parent=101, session=102)
    proc.add(103, parent=50, session=100)
    proc.add(104, parent=50, session=104)
    proc.add(105, parent=110, session=110)
    proc.add(110, parent=50)
    assert procstate.belongs_to(pid, 100, proc.root) is expected


def test_a_loop_of_parents_ends(proc: Proc) -> None:
    proc.add(5, parent=6)
    proc.add(6, parent=5)
    assert not procstate.belongs_to(5, 100, proc.root)


def test_looking_leaves_out_who_is_gone(proc: Proc) -> None:
    proc.add(7)
    assert list(procstate.look({0: 7, 1: 8}, proc.root)) == [0]


def test_this_process_is_running_and_has_a_start() -> None:
    state = read(os.getpid(), children=True)
    assert state is not None
    assert state.state == "R" and state.start_ticks > 0 and state.threads >= 1
    assert state.children_ticks is not None
