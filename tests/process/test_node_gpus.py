"""GPUs under a whole job: the real nvidia-ml-py over a driver library that does what the test wants."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support import procfs
from support.jobs import Job, Launcher
from support.nvml import GIB, StandIn, gpu
from support.waiting import wait_until

SCRIPT = """
import os, signal
import ftlaunch.heartbeat as heartbeat
heartbeat.beat(1)
print("generation", os.environ["FTLAUNCH_GENERATION"], "runs", flush=True)
if os.environ["FTLAUNCH_GENERATION"] == "0": signal.pause()
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return StandIn(tmp_path_factory.mktemp("driver"))


def start(ftlaunch: Launcher, folder: Path, driver: StandIn, *options: str) -> Job:
    """A job of one rank on the driver as it is now, up to its first step."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    log = f"--termination-log={folder / 'termination-log'}"
    job = ftlaunch("--standby=off", "--max-restarts=2", log, *options, script, env=environment(driver))
    job.wait_for_output("generation 0 runs")
    return job


def environment(driver: StandIn) -> dict[str, str | None]:
    names = ("LD_LIBRARY_PATH", "STAND_IN_STATE")
    return {**{name: driver.environment[name] for name in names}, "CUDA_VISIBLE_DEVICES": None}


def rank_of(job: Job) -> int:
    (pid,) = job.events("workers_started")[0]["pids"]
    assert isinstance(pid, int)
    return pid


def starts(job: Job) -> list[int]:
    return [event["generation"] for event in job.events("workers_started")]


def test_late_release_delays_the_respawn(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    driver.show(gpu(0, GIB))
    job = start(ftlaunch, tmp_path, driver)
    pid = rank_of(job)
    # The first look was at the baseline; the dead rank is listed in the next ones.
    driver.show(
        f"before 12 gpu 0 GPU-0 {9 * GIB} {80 * GIB} NVIDIA H100", f"before 12 proc GPU-0 {pid} {8 * GIB}", gpu(0, GIB)
    )
    os.kill(pid, 9)
    assert job.wait() == 0, job.err
    (back,) = job.events("gpu_memory_back")
    assert back["looks"] == 11 and back["elapsed_s"] > 0.15
    assert starts(job) == [0, 1]
    assert (
        job.events("workers_started")[1]["monotonic"]
        >= back["monotonic"]
        >= job.events("workers_stopped")[0]["monotonic"]
    )


def test_release_that_never_comes_gives_the_node_up(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    driver.show(gpu(0, GIB), gpu(1, GIB))
    job = start(ftlaunch, tmp_path, driver, "--gpu-reclaim-timeout=500ms")
    pid = rank_of(job)
    driver.show(gpu(0, GIB), gpu(1, 9 * GIB), f"proc GPU-1 {pid} {8 * GIB}")
    os.kill(pid, 9)
    assert job.wait() == 75
    reason = f"GPU memory not back after 0.5 s: GPU 1 (GPU-1): pid {pid} (already dead) holds 8 GiB"
    assert reason in job.err
    assert (tmp_path / "termination-log").read_text().startswith(reason)
    assert starts(job) == [0]


def test_memory_of_other_tenants_is_not_waited_for(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    """One was there before, another one comes while the rank runs; nobody touches them."""
    with subprocess.Popen(["sleep", "600"]) as early, subprocess.Popen(["sleep", "600"]) as late:
        try:
            driver.show(gpu(0, 21 * GIB), f"proc GPU-0 {early.pid} {20 * GIB}")
            job = start(ftlaunch, tmp_path, driver)
            driver.show(gpu(0, 51 * GIB), f"proc GPU-0 {early.pid} {20 * GIB}", f"proc GPU-0 {late.pid} {30 * GIB}")
            os.kill(rank_of(job), 9)
            assert job.wait() == 0, job.err
            (back,) = job.events("gpu_memory_back")
            assert back["looks"] == 1 and back["killed"] == []
            assert early.poll() is None and late.poll() is None
        finally:
            early.kill()
            late.kill()


def test_tolerance_is_configurable(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    driver.show(gpu(0, GIB))
    job = start(ftlaunch, tmp_path, driver, "--gpu-reclaim-tolerance=9G")
    driver.show(gpu(0, 9 * GIB))
    os.kill(rank_of(job), 9)
    assert job.wait() == 0, job.err
    assert job.events("gpu_memory_back")[0]["looks"] == 1


def test_hidden_gpus_are_not_asked_for(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    driver.show("hang nvmlInitWithFlags")
    (tmp_path / "train.py").write_text(SCRIPT)
    job = ftlaunch("--max-restarts=1", tmp_path / "train.py", env={**environment(driver), "CUDA_VISIBLE_DEVICES": ""})
    wait_until(lambda: bool(job.events("gpus")), 20, "the node was looked at")
    assert "hides all GPUs" in job.events("gpus")[0]["reason"]
    os.kill(rank_of(job), 9)
    assert job.wait() == 0, job.err


@pytest.mark.slow
def test_driver_that_hangs_before_the_start_costs_the_node_and_no_more(
    ftlaunch: Launcher, tmp_path: Path, driver: StandIn
) -> None:
    driver.show(gpu(0, GIB), "hang nvmlDeviceGetMemoryInfo")
    (tmp_path / "train.py").write_text("")
    job = ftlaunch(tmp_path / "train.py", env=environment(driver))
    assert job.wait() == 75
    assert "the NVIDIA driver did not answer within 5 s" in job.err and "CUDA_VISIBLE_DEVICES=" in job.err
    assert starts(job) == []


@pytest.mark.slow
def test_driver_that_hangs_after_a_failure_costs_the_node_and_no_more(
    ftlaunch: Launcher, tmp_path: Path, driver: StandIn
) -> None:
    driver.show(gpu(0, GIB))
    job = start(ftlaunch, tmp_path, driver)
    helper = procfs.children(job.pid) - {rank_of(job)}
    driver.show(gpu(0, GIB), "hang nvmlDeviceGetMemoryInfo")
    os.kill(rank_of(job), 9)
    assert job.wait() == 75
    assert "the NVIDIA driver did not answer within 5 s" in job.err
    assert starts(job) == [0]
    wait_until(lambda: not any(map(procfs.alive, helper)), 5, "the helper that hangs is gone with its agent")


def test_driver_that_hangs_does_not_keep_the_job_from_being_stopped(
    ftlaunch: Launcher, tmp_path: Path, driver: StandIn
) -> None:
    driver.show("hang nvmlInitWithFlags")
    (tmp_path / "train.py").write_text("")
    job = ftlaunch(tmp_path / "train.py", env=environment(driver))
    wait_until(lambda: bool(job.events("job_started")), 30)
    job.signal(15)
    assert job.wait(10) == 143


def test_broken_driver_costs_one_line(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    driver.show("fail nvmlInitWithFlags * 9")
    (tmp_path / "train.py").write_text("")
    job = ftlaunch(tmp_path / "train.py", env=environment(driver))
    assert job.wait() == 0
    assert job.err.count("GPUs are not watched") == 1


def test_hardware_error_while_ranks_run_gives_the_node_up(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    driver.show(gpu(0, GIB))
    job = start(ftlaunch, tmp_path, driver)
    driver.show(gpu(0, GIB), "xid GPU-0 79")
    assert job.wait() == 75
    assert "GPU 0 (GPU-0): Xid 79, fallen off the bus" in job.err
    assert "Xid 79" in (tmp_path / "termination-log").read_text()
    assert starts(job) == [0]


def test_rank_that_dies_of_a_gpu_error_is_told_so(ftlaunch: Launcher, tmp_path: Path, driver: StandIn) -> None:
    """Xid 31 is the program's own fault: nothing is held against the node."""
    driver.show(gpu(0, GIB))
    job = start(ftlaunch, tmp_path, driver)
    driver.show(gpu(0, GIB), "xid GPU-0 31")
    wait_until(lambda: bool(job.events("xid")), 20, "the error was reported")
    os.kill(rank_of(job), 6)
    assert job.wait() == 0, job.err
    diagnosis = job.incidents()[0]["diagnosis"]
    assert diagnosis["kind"] == "gpu_error" and "Xid 31 (memory page fault)" in diagnosis["sentence"]
    assert diagnosis["sentence"] in job.err
