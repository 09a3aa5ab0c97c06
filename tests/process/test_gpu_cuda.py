"""The same on a real GPU: a rank that holds 2 GiB and is SIGKILLed, and a grandchild that keeps it.

Uses the driver alone (libcuda), not torch. Skipped where there is no CUDA device.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ftlaunch.launcher.gpu.keeper import Gpus, describe_reclaim
from ftlaunch.launcher.gpu.reclaim import ReclaimRequest
from ftlaunch.launcher.health.gpus import check_gpus
from ftlaunch.launcher.health.result import Healthy
from support import cuda
from support.nvml import open_gpus

GIB = 1 << 30
MARK = f"cuda-test-{os.getpid()}"
HOLD = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code:
        sys.exit(f"CUDA driver error {code}")
check(cuda.cuInit(0))
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30)))
print("ready", os.getpid(), flush=True)
sys.stdin.read()
"""
PARENT = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {HOLD!r}], start_new_session=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_a_cuda_device() -> None:
    cuda.need_a_device()


@asynccontextmanager
async def first_gpu() -> AsyncIterator[Gpus]:
    """The device that CUDA calls 0, with its baseline taken."""
    gpus = await open_gpus({**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MARK)
    try:
        await gpus.take_baseline()
        assert gpus.trouble == "" and gpus.watched, gpus.note
        yield gpus
    finally:
        await gpus.close()


def start(code: str) -> tuple[subprocess.Popen[str], int]:
    """A marked rank; returns once somebody below it holds 2 GiB, with the pid of who does."""
    environment = {**os.environ, "FTLAUNCH_MARK": MARK, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    word, _, pid = process.stdout.readline().partition(" ")
    assert word == "ready", "the rank could not get 2 GiB of GPU memory"
    return process, int(pid)


def test_a_killed_rank_gives_its_2_gib_back() -> None:
    async def play() -> None:
        async with first_gpu() as gpus:
            process, pid = start(HOLD)
            (before, *_) = await gpus.observe({pid})
            process.kill()
            process.communicate()
            outcome = await gpus.reclaim(ReclaimRequest(frozenset({pid}), timeout_s=30.0))
            assert outcome.done, outcome.reason
            assert outcome.killed == ()
            (after, *_) = await gpus.sample()
            assert before.used is not None and after.used is not None and before.used - after.used >= 2 * GIB
            print(describe_reclaim(outcome))

    asyncio.run(play())


def test_a_grandchild_that_keeps_the_memory_is_killed_by_name() -> None:
    async def play() -> None:
        async with first_gpu() as gpus:
            process, grandchild = start(PARENT)
            process.kill()
            process.wait()
            outcome = await gpus.reclaim(ReclaimRequest(frozenset({process.pid}), timeout_s=30.0))
            process.communicate()
            assert outcome.done, outcome.reason
            assert [holder.pid for holder in outcome.killed] == [grandchild]

    asyncio.run(play())


def test_somebody_elses_memory_is_left_alone() -> None:
    async def play() -> None:
        async with first_gpu() as gpus:
            process, pid = start(HOLD.replace("2 << 30", "1 << 28"))
            neighbour = subprocess.Popen(
                [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            try:
                assert neighbour.stdout is not None and neighbour.stdout.readline().startswith("ready")
                process.kill()
                process.communicate()
                outcome = await gpus.reclaim(ReclaimRequest(frozenset({pid}), timeout_s=30.0))
                assert outcome.done, outcome.reason
                assert outcome.killed == () and neighbour.poll() is None
            finally:
                neighbour.kill()
                neighbour.communicate()

    asyncio.run(play())


def test_a_sound_gpu_is_healthy() -> None:
    async def play() -> None:
        async with first_gpu() as gpus:
            results = check_gpus(await gpus.health(), gpus.healthy_state, gpus.xids, gpus.trouble)
            assert all(isinstance(result, Healthy) for result in results), results

    asyncio.run(play())
