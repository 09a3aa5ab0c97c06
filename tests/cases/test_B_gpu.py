"""Reports of GPU memory that was not back when the next attempt began. The driver is a stand-in, see support.nvml."""

from __future__ import annotations

from pathlib import Path

import pytest

from cases.training import write
from support.jobs import Job, Launcher
from support.nvml import GIB, StandIn, gpu
from support.waiting import wait_until


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return StandIn(tmp_path_factory.mktemp("driver"))


def start(ftlaunch: Launcher, driver: StandIn, folder: Path, *options: str) -> tuple[Job, int]:
    """A job on one GPU, and the pid of its rank, which is killed when ``folder / 'go'`` is there."""
    driver.show(gpu(0, GIB))
    body = f"""
say("runs", GEN, os.getpid())
while GEN == 0 and not os.path.exists({str(folder / "go")!r}): time.sleep(0.01)
if GEN == 0: os.kill(os.getpid(), 9)
"""
    own = {name: driver.environment[name] for name in ("LD_LIBRARY_PATH", "STAND_IN_STATE")}
    job = ftlaunch("--max-restarts", "1", *options, write(folder, body), env=own)
    job.wait_for_output("runs 0")
    return job, int(job.out.split("runs 0 ")[1].split()[0])


def test_B1_no_respawn_before_the_memory_of_the_dead_is_back(
    ftlaunch: Launcher, driver: StandIn, tmp_path: Path
) -> None:
    job, rank = start(ftlaunch, driver, tmp_path)
    driver.show(gpu(0, 9 * GIB), f"proc GPU-0 {rank} {8 * GIB}")
    (tmp_path / "go").touch()
    # The driver is asked again and again: only its answer decides.
    wait_until(lambda: job.events("workers_stopped"), 20)
    wait_until(lambda: job.events("rendezvous_completed")[1:], 20)
    assert len(job.events("workers_started")) == 1
    driver.show(gpu(0, GIB))
    assert job.wait() == 0
    (back,) = job.events("gpu_memory_back")
    assert back["looks"] > 1 and job.events("workers_started")[1]["monotonic"] > back["monotonic"]


def test_B1_memory_that_never_comes_back_gives_the_node_up(ftlaunch: Launcher, driver: StandIn, tmp_path: Path) -> None:
    job, rank = start(ftlaunch, driver, tmp_path, "--gpu-reclaim-timeout", "0.5")
    driver.show(gpu(0, 9 * GIB), f"proc GPU-0 {rank} {8 * GIB}")
    (tmp_path / "go").touch()
    assert job.wait(30) == 75
    assert len(job.events("workers_started")) == 1
    assert f"pid {rank}" in job.err and "holds 8 GiB" in job.err and "Traceback" not in job.err
