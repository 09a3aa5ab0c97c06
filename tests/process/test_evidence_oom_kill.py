"""A real out-of-memory kill is called one, and a SIGKILL from a shell is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch.launcher.evidence.classify import classify
from ftlaunch.launcher.evidence.collect import open_node_watch
from ftlaunch.launcher.evidence.culprit import investigate
from ftlaunch.launcher.evidence.diagnosis import Confidence, Kind, NodeEvidence, RankEvidence
from ftlaunch.launcher.evidence.kernel_log import KernelLog, open_kernel_log, parse_fault, pids_are_ours
from ftlaunch.launcher.evidence.oom import OomWatch
from ftlaunch.launcher.gpu.model import XidEvent
from support import cgroups
from support.waiting import wait_until

LIMIT = 64 << 20
GREEDY = "import sys; sys.stdin.readline(); kept = [bytearray(b'x') * (1 << 20) for _ in range(400)]; print('fine')"


@pytest.fixture(params=["with the kernel log", "without it"])
def log(request: pytest.FixtureRequest) -> Iterator[KernelLog | None]:
    if request.param == "without it":
        yield None
        return
    opened = open_kernel_log()
    if opened is None:
        pytest.skip("/dev/kmsg can't be read by this user")
    yield opened
    opened.close()


def rank(code: str, folder: Path | None = None) -> subprocess.Popen[bytes]:
    """A process that waits for a line before it begins, so that it can be put into a group first."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    if folder is not None:
        cgroups.join(folder, process.pid)
    return process


def let_go(process: subprocess.Popen[bytes]) -> int:
    process.communicate(b"\n", timeout=60)
    return process.returncode


def test_an_oom_kill_is_proven(log: KernelLog | None) -> None:
    with cgroups.memory_group(LIMIT) as folder:
        process = rank(GREEDY, folder)
        watch = OomWatch(log)
        watch.begin([process.pid])
        code = let_go(process)
        found = classify(RankEvidence(3, process.pid, code), NodeEvidence(watch.look()))
    assert code == -9 and found is not None
    assert found.sentence.startswith(
        f"rank 3 (pid {process.pid}) was OOM-killed by the kernel: cgroup limit 64 MiB, peak 64 MiB"
    )
    assert (found.kind, found.confidence) == (Kind.OUT_OF_MEMORY, Confidence.CERTAIN)


def test_a_sigkill_from_a_shell_is_not_an_oom_kill(log: KernelLog | None) -> None:
    """Also while another process of the same group is OOM-killed, where the log can tell them apart."""
    with cgroups.memory_group(LIMIT) as folder:
        victim, greedy = rank("import sys; sys.stdin.read()", folder), rank(GREEDY, folder)
        watch = OomWatch(log)
        watch.begin([victim.pid, greedy.pid])
        subprocess.run(["/bin/sh", "-c", f"kill -9 {victim.pid}"], check=True)
        assert victim.wait(10) == -9
        alone = classify(RankEvidence(0, victim.pid, -9), NodeEvidence(watch.look()))
        assert let_go(greedy) == -9
        both = classify(RankEvidence(0, victim.pid, -9), NodeEvidence(watch.look()), killed_ranks=2)
        if victim.stdin is not None:
            victim.stdin.close()
    assert alone is not None and alone.kind is Kind.KILLED_BY_OTHERS and alone.confidence is Confidence.CERTAIN
    assert both is not None
    if log is not None and pids_are_ours():
        assert both.kind is Kind.KILLED_BY_OTHERS
    else:
        assert both.confidence is Confidence.LIKELY


def test_an_oom_killed_grandchild_does_not_make_its_parent_one(log: KernelLog | None) -> None:
    """The counters rise all the same: that is how a lost data-loader worker is explained."""
    parent = (
        f"import subprocess, sys; sys.stdin.readline(); subprocess.run([sys.executable, '-c', {GREEDY!r}], input=b'')"
    )
    with cgroups.memory_group(LIMIT) as folder:
        process = rank(parent, folder)
        watch = OomWatch(log)
        watch.begin([process.pid])
        assert let_go(process) == 0
        facts = watch.look()
        lost = RankEvidence(
            1,
            process.pid,
            1,
            exception="RuntimeError",
            message="DataLoader worker (pid 9) is killed by signal: Killed.",
        )
        found = classify(lost, NodeEvidence(facts))
    assert facts.in_group_of(process.pid) is not None and not facts.named(process.pid)
    assert found is not None and found.kind is Kind.OUT_OF_MEMORY and "cgroup limit 64 MiB" in found.sentence


def test_a_segmentation_fault_names_its_library() -> None:
    opened = open_kernel_log()
    if opened is None or not pids_are_ours():
        pytest.skip("/dev/kmsg can't be read by this user, or numbers processes otherwise")
    try:
        process = rank("import sys, ctypes; sys.stdin.readline(); ctypes.string_at(0)")
        assert let_go(process) == -11
        seen: list[str] = []

        def told() -> bool:
            seen.extend(opened.read_new())
            return any("segfault" in line for line in seen)

        try:
            wait_until(told, 2, "the kernel logs the fault")
        except AssertionError:
            pytest.skip("this kernel does not log segmentation faults (debug.exception-trace, or its rate limit)")
        faults = dict(fault for line in seen if (fault := parse_fault(line)))
        assert process.pid in faults
        assert classify(RankEvidence(0, process.pid, -11), NodeEvidence(kernel_faults=faults)) is not None
    finally:
        opened.close()


def test_a_generation_is_watched_as_a_whole() -> None:
    earlier, later = XidEvent("GPU-a", 0, 31), XidEvent("GPU-a", 0, 79)
    watch = open_node_watch()
    try:
        process = rank("import sys; sys.stdin.readline(); import os; os.kill(os.getpid(), 9)")
        watch.begin([process.pid], [earlier])
        assert let_go(process) == -9
        evidence = watch.look([earlier, later])
    finally:
        watch.close()
    assert evidence.xids == (later,) and evidence.oom.kills == ()
    assert evidence.shm_free_fraction is None or 0 <= evidence.shm_free_fraction <= 1
    assert investigate([RankEvidence(0, process.pid, -9, 1.0)], evidence).cause is not None
