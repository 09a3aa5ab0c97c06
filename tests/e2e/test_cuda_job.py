"""Whole jobs on a real GPU: memory is back before the next generation, faults of CUDA are told as what they are.

Skipped where there is no CUDA device. The ranks share the first one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import cuda
from support.jobs import Job, Launcher
from support.waiting import wait_until

DRILL = Path(__file__).parent.parent / "workloads" / "train_ddp.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def _needs_a_cuda_device() -> None:
    cuda.need_a_device()


def drill(ftlaunch: Launcher, folder: Path, *options: str, nproc: int = 2, **settings: str) -> Job:
    """The reference workload on the GPU, 4 GiB a rank."""
    environment: dict[str, str | None] = {
        "DRILL_OUT": str(folder),
        "DRILL_DEVICE": "cuda",
        "DRILL_GPU_GIB": "4",
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    return ftlaunch("--nproc-per-node", str(nproc), *options, DRILL, env=environment)


def script(ftlaunch: Launcher, folder: Path, text: str, *options: str) -> Job:
    path = folder / "train.py"
    path.write_text(text)
    return ftlaunch("--standby=off", *options, path)


def on_the_gpu() -> set[int]:
    """Processes with a context on any device, as the driver's own tool tells them."""
    query = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return {int(line) for line in listed.split() if line.isdecimal()}


@pytest.mark.parametrize("standby", ["on", "off"])
def test_faults_of_all_kinds_give_the_memory_back_first(ftlaunch: Launcher, tmp_path: Path, standby: str) -> None:
    job = drill(
        ftlaunch, tmp_path, "--standby", standby, "--hang-floor=3", DRILL_FAULTS="75:kill,175:raise,275:freeze,350:stop"
    )
    assert job.wait(240) == 0, job.err[-3000:]
    back = job.events("gpu_memory_back")
    assert [event["generation"] for event in back] == [0, 1, 2, 3], job.err[-3000:]
    assert not any(event["killed"] for event in back)
    started = job.events("workers_started")
    assert len(started) == 5
    assert all(event["monotonic"] <= after["monotonic"] for event, after in zip(back, started[1:], strict=True)), (
        "a rank was started before the memory was back"
    )


def pids(job: Job, name: str) -> set[int]:
    return {event["pid"] for event in job.events(name)}


@pytest.mark.parametrize("asked", [False, True])
def test_standby_has_a_context_only_if_asked_for(ftlaunch: Launcher, tmp_path: Path, asked: bool) -> None:
    options = ("--standby=on", *(["--standby-cuda"] if asked else []))
    job = drill(ftlaunch, tmp_path, *options, DRILL_STEPS="1000000", DRILL_FAULTS="")
    wait_until(lambda: len(job.events("standby_ready")) == 2, 120, "standbys are warm")
    standbys = pids(job, "standby_ready")
    ranks = set(job.events("workers_started")[0]["pids"])
    holders = on_the_gpu()
    assert ranks <= holders
    assert (standbys <= holders) if asked else not (standbys & holders)
    os.kill(min(ranks), signal.SIGKILL)
    wait_until(lambda: len(job.events("workers_started")) == 2, 60, "there is another generation")
    assert set(job.events("workers_started")[1]["pids"]) == standbys, "the standbys have become the ranks"
    (back,) = job.events("gpu_memory_back")
    assert back["killed"] == []
    job.signal(signal.SIGTERM)
    job.wait(60)
    wait_until(lambda: not (on_the_gpu() & (standbys | ranks)), 20, "the GPU is free")


def test_nccl_rank_that_is_killed_comes_back(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = drill(ftlaunch, tmp_path, nproc=1, DRILL_BACKEND="nccl", DRILL_FAULTS="75:kill,175:spin", DRILL_STEPS="250")
    assert job.wait(200) == 0, job.err[-3000:]
    assert len(job.events("gpu_memory_back")) == 2


def diagnosis(job: Job) -> dict[str, Any]:
    first = job.incidents()[0]["diagnosis"]
    assert isinstance(first, dict)
    return first


def test_out_of_gpu_memory_is_told(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = script(ftlaunch, tmp_path, "import torch\ntorch.empty(1 << 50, device='cuda')\n")
    assert job.wait(120) == 1
    assert "memory" in diagnosis(job)["kind"], job.incidents()


def test_device_side_assert_is_told(ftlaunch: Launcher, tmp_path: Path) -> None:
    text = (
        "import torch\nx = torch.zeros(4, device='cuda')\n"
        "y = x[torch.tensor([9], device='cuda')]\ntorch.cuda.synchronize()\n"
    )
    job = script(ftlaunch, tmp_path, text)
    assert job.wait(120) != 0
    assert diagnosis(job)["kind"] in ("gpu_error", "cuda_error"), job.incidents()
