"""What a whole job says of a death: out of memory, killed by somebody, a victim, a rank that cannot be killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support import cgroups, procfs
from support.jobs import Job, Launcher
from support.scripts import write
from support.waiting import wait_until

WAIT = """
import ftlaunch.heartbeat as heartbeat
def wait_for(path):
    while not os.path.exists(path): threading.Event().wait(0.01)
"""
MOVE = """
if GEN == 0 and RANK == 1:
    open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
heartbeat.beat(1)
"""


def start(ftlaunch: Launcher, folder: Path, body: str, *args: str | Path, options: tuple[str, ...] = ()) -> Job:
    script = write(folder, WAIT + body)
    return ftlaunch("--nproc-per-node=2", "--standby=off", "--max-restarts=1", *options, script, *args)


def pid_of(job: Job, rank: int) -> int:
    pid = job.events("workers_started")[0]["pids"][rank]
    assert isinstance(pid, int)
    return pid


def test_out_of_memory_kill_is_reported_with_limit_and_rank(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The rank moves itself into a group of its own, as wrappers of batch systems do."""
    flag = tmp_path / "flag"
    body = (
        MOVE
        + """
if GEN == 0:
    wait_for(sys.argv[2])
    if RANK == 1: kept = [bytearray(b"x") * (1 << 20) for _ in range(400)]
    signal.pause()
"""
    )
    with cgroups.memory_group(64 << 20) as group:
        job = start(ftlaunch, tmp_path, body, group, flag)
        wait_until(lambda: bool(job.events("training_resumed")) and cgroups.members(group) == [pid_of(job, 1)], 30)
        # Ranks that moved are looked for two seconds after the start at the latest.
        wait_until(lambda: watched(job), 30)
        flag.touch()
        assert job.wait() == 0, job.err
        sentence = f"rank 1 (pid {pid_of(job, 1)}) was OOM-killed by the kernel: cgroup limit 64 MiB, peak 64 MiB"
        assert sentence in job.err and "hint: more memory" in job.err
        diagnosis = job.incidents()[0]["diagnosis"]
        assert diagnosis["sentence"] == sentence
        assert (diagnosis["kind"], diagnosis["confidence"], diagnosis["rank"]) == ("out_of_memory", "certain", 1)


def watched(job: Job) -> bool:
    (started,) = job.events("workers_started")
    now = float(Path("/proc/uptime").read_text().split()[0])
    return now > started["monotonic"] + 3.0


def test_sigkill_from_a_shell_is_no_out_of_memory_kill(ftlaunch: Launcher, tmp_path: Path) -> None:
    with cgroups.memory_group(256 << 20) as group:
        job = start(ftlaunch, tmp_path, MOVE + "if GEN == 0: signal.pause()", group)
        wait_until(lambda: bool(job.events("training_resumed")) and cgroups.members(group) == [pid_of(job, 1)], 30)
        subprocess.run(["/bin/sh", "-c", f"kill -9 {pid_of(job, 1)}"], check=True)
        assert job.wait() == 0, job.err
    assert "OOM" not in job.err and "not by ftlaunch" in job.err
    assert job.incidents()[0]["diagnosis"]["kind"] == "killed_by_others"


def test_culprit_is_told_from_the_victim_that_spoke_first(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
import socket
mine, theirs = sys.argv[1] + f"/{RANK}", sys.argv[1] + f"/{1 - RANK}"
heartbeat.beat(1)
if GEN == 0:
    if RANK == 0: raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711")
    wait_for(sys.argv[1] + "/never")
"""
    job = start(ftlaunch, tmp_path, body, tmp_path)
    assert job.wait() == 0, job.err
    incident = job.incidents()[0]
    assert incident["diagnosis"]["kind"] == "peer_lost" and incident["diagnosis"]["rank"] == 0
    assert [other["kind"] for other in incident["others"]] == ["stopped_by_us"]


WATCHDOG = 'os.write(2, b"[rank0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\\n")'


@pytest.mark.parametrize(("last", "confidence"), [(WATCHDOG, "likely"), ("pass", "possible")], ids=["told", "silent"])
def test_D6_silent_culprit_is_named_though_its_victim_aborts(
    ftlaunch: Launcher, tmp_path: Path, last: str, confidence: str
) -> None:
    """Rank 1 stops beating and hangs; rank 0 beats on and then aborts, as a collective's watchdog does."""
    body = f"""
heartbeat.beat(1)
if GEN == 0:
    if RANK == 1: signal.pause()
    import threading
    for step in range(2, 32):
        threading.Event().wait(0.1)
        heartbeat.beat(step)
    {last}
    os.abort()
"""
    job = start(ftlaunch, tmp_path, body)
    assert job.wait() == 0, job.err
    incident = job.incidents()[0]
    assert incident["cause"]["rank"] == 0
    assert incident["diagnosis"]["rank"] == 1 and incident["diagnosis"]["kind"] == "stall"
    assert incident["diagnosis"]["confidence"] == confidence
    assert (
        "rank 1 (pid" in incident["diagnosis"]["sentence"] and "it held up rank 0" in incident["diagnosis"]["sentence"]
    )
    assert "on a closer look: rank 1" in job.err
    assert incident["progress"].startswith("rank 0 0.")


def test_final_report_has_the_diagnosis_and_a_hint(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "if RANK == 1: raise OSError(28, 'No space left on device', '/data/x')\nsignal.pause()"
    job = start(ftlaunch, tmp_path, body, options=("--fatal-exit-codes=1",))
    assert job.wait() == 1
    report = job.err.partition("FAILED")[2]
    assert "diagnosis : rank 1" in report and "the disk or quota is full" in report
    assert "hint        : free space where checkpoints and logs go" in report
    assert job.incidents()[-1]["diagnosis"]["kind"] == "disk_full"


def test_A6_rank_that_cannot_be_killed_costs_the_node_and_no_more(ftlaunch: Launcher, tmp_path: Path) -> None:
    """SIGKILL stays pending as long as its control group is frozen, as for a process in state D."""
    with cgroups.freezer_group() as group:
        log = tmp_path / "termination-log"
        options = ("--unkillable-timeout=1", f"--termination-log={log}")
        body = "heartbeat.beat(1)\nprint('ready', flush=True)\nsignal.pause()"
        job = start(ftlaunch, tmp_path, body, options=options)
        wait_until(lambda: job.out.count("ready") == 2 and bool(job.events("workers_started")), 30)
        frozen = pid_of(job, 1)
        cgroups.join(group, frozen)
        cgroups.freeze(group)
        os.kill(pid_of(job, 0), 9)
        assert job.wait(20) == 75
        detected, given_up = job.events("failure_detected")[0], job.events("workers_unkillable")[0]
        assert 1.0 <= given_up["monotonic"] - detected["monotonic"] < 5.0
        assert f"cannot be killed: pid {frozen} (python" in job.err and f"pid {frozen}" in log.read_text()
        assert len(job.events("workers_started")) == 1, "no new rank next to it"
        assert procfs.alive(frozen)
        cgroups.thaw(group)
        wait_until(lambda: not procfs.alive(frozen), 10, "the signal reaches it")


@pytest.mark.parametrize("clean", [False, True], ids=["reported", "removed"])
def test_A9_shared_memory_of_a_dead_generation(ftlaunch: Launcher, tmp_path: Path, clean: bool) -> None:
    """What the next rank finds, and what is said. A segment that somebody uses stays whatever was asked for."""
    left, used = (Path(f"/dev/shm/ftlaunch-test-{os.getpid()}-{what}") for what in ("left", "used"))
    flag = tmp_path / "flag"
    body = f"""
left, used = {str(left)!r}, {str(used)!r}
if GEN == 0:
    if RANK == 1:
        for path in (left, used): open(path, "wb").write(b"x" * (1 << 20))
        print("made", flush=True)
        wait_for({str(flag)!r})
        os.kill(os.getpid(), 9)
    signal.pause()
if RANK == 0: print("found", os.path.exists(left), os.path.exists(used), flush=True)
"""
    try:
        job = start(ftlaunch, tmp_path, body, options=("--clean-shm",) if clean else ())
        job.wait_for_output("made")
        with used.open("rb"):
            flag.touch()
            assert job.wait() == 0, job.err
        (told,) = job.events("shm_leftovers")
        assert told["removed"] is clean and told["names"] == [left.name]
        assert f"found {not clean} True" in job.out
        said = f"1 MiB new in /dev/shm since the ranks started, and open nowhere: {left.name}"
        assert (f"removed {said}" if clean else f"{said} (--clean-shm removes such)") in job.err
    finally:
        left.unlink(missing_ok=True)
        used.unlink(missing_ok=True)


def test_A9_what_the_last_generation_leaves_is_seen_to_as_well(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The container's tmpfs outlives it: the next container would start with less."""
    left = Path(f"/dev/shm/ftlaunch-test-{os.getpid()}-last")
    body = f"""
if RANK == 1:
    open({str(left)!r}, "wb").write(b"x" * (1 << 20))
    os.kill(os.getpid(), 9)
signal.pause()
"""
    try:
        job = start(ftlaunch, tmp_path, body, options=("--clean-shm", "--max-restarts=0"))
        assert job.wait() == 137
        assert "removed 1 MiB new in /dev/shm since the ranks started" in job.err and not left.exists()
    finally:
        left.unlink(missing_ok=True)
