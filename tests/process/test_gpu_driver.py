"""The real nvidia-ml-py in its helper process, over a driver library that does what the test wants."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ftlaunch.launcher.gpu import client as nvml
from ftlaunch.launcher.gpu.keeper import Gpus, describe_reclaim
from ftlaunch.launcher.gpu.model import XidEvent
from ftlaunch.launcher.gpu.nvml_errors import NvmlHung
from ftlaunch.launcher.gpu.reclaim import ReclaimOutcome, ReclaimRequest
from ftlaunch.launcher.processes import bystanders
from support import procfs
from support.nvml import GIB, StandIn, gpu, open_gpus
from support.waiting import wait_until

DEAD = 4_000_000  # above pid_max's default: nobody has it
MARK = "gpu-driver-test"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return StandIn(tmp_path_factory.mktemp("driver"))


@asynccontextmanager
async def opened(driver: StandIn, **environment: str) -> AsyncIterator[Gpus]:
    gpus = await open_gpus({**driver.environment, **environment}, MARK)
    try:
        yield gpus
    finally:
        await gpus.close()
        assert not bystanders.PIDS


def reclaiming(
    driver: StandIn, then: Callable[[], None], request: ReclaimRequest, **environment: str
) -> ReclaimOutcome:
    """Baseline with what the driver shows now, then ``then``, then reclaim."""

    async def play() -> ReclaimOutcome:
        async with opened(driver, **environment) as gpus:
            await gpus.take_baseline()
            assert gpus.trouble == ""
            then()
            return await gpus.reclaim(request)

    return asyncio.run(play())


def test_release_at_once(library: StandIn) -> None:
    library.show(gpu(0, GIB))
    outcome = reclaiming(library, lambda: None, ReclaimRequest(frozenset({DEAD})))
    assert outcome.done and outcome.looks == 1


def test_late_release(library: StandIn) -> None:
    """The driver keeps a dead rank in its list, and its memory, for a few looks."""
    library.show(gpu(0, GIB))
    late = [f"before 4 gpu 0 GPU-0 {9 * GIB} {80 * GIB} NVIDIA H100", f"before 6 proc GPU-0 {DEAD} {8 * GIB}"]
    outcome = reclaiming(library, lambda: library.show(*late, gpu(0, GIB)), ReclaimRequest(frozenset({DEAD})))
    assert outcome.done and outcome.looks == 5
    assert outcome.killed == ()


def test_release_that_never_comes(library: StandIn) -> None:
    library.show(gpu(0, GIB), gpu(1, GIB))
    stuck = [gpu(0, GIB), gpu(1, 9 * GIB), f"proc GPU-1 {DEAD} {8 * GIB}"]
    outcome = reclaiming(library, lambda: library.show(*stuck), ReclaimRequest(frozenset({DEAD}), timeout_s=0.2))
    assert not outcome.done and 0.2 <= outcome.elapsed_s < 5
    assert outcome.reason.startswith(
        f"GPU memory not back after 0.2 s: GPU 1 (GPU-1): pid {DEAD} (already dead) holds 8 GiB"
    )


def test_other_tenants_cost_nothing(library: StandIn) -> None:
    """One was there before, another comes while we train; both are visible processes of this machine."""
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            library.show(gpu(0, 21 * GIB), f"proc GPU-0 {os.getpid()} {20 * GIB}")
            later = [gpu(0, 51 * GIB), f"proc GPU-0 {os.getpid()} {20 * GIB}", f"proc GPU-0 {sleeper.pid} {30 * GIB}"]
            outcome = reclaiming(library, lambda: library.show(*later), ReclaimRequest(frozenset({DEAD})))
            assert outcome.done and outcome.looks == 1 and outcome.killed == ()
            assert sleeper.poll() is None
        finally:
            sleeper.kill()


def test_a_device_outside_cuda_visible_devices_does_not_matter(library: StandIn) -> None:
    library.show(gpu(0, GIB), gpu(1, GIB))
    outcome = reclaiming(
        library,
        lambda: library.show(gpu(0, 70 * GIB), gpu(1, GIB)),
        ReclaimRequest(frozenset({DEAD})),
        CUDA_VISIBLE_DEVICES="1",
    )
    assert outcome.done and outcome.looks == 1


def test_hidden_pid_namespace(library: StandIn) -> None:
    """A container whose driver lists no process at all: memory alone tells, and the reason says so."""
    library.show(gpu(0, GIB))
    hidden = lambda: library.show(f"before 5 {gpu(0, 9 * GIB)}", gpu(0, GIB))  # noqa: E731
    assert reclaiming(library, hidden, ReclaimRequest(frozenset({41}))).looks == 4
    library.show(gpu(0, GIB))
    stuck = reclaiming(library, lambda: library.show(gpu(0, 9 * GIB)), ReclaimRequest(frozenset({41}), timeout_s=0.1))
    assert not stuck.done and "the driver lists no process that holds it" in stuck.reason


def test_pids_of_another_namespace_count_as_possibly_ours(library: StandIn) -> None:
    library.show(gpu(0, 6 * GIB), f"proc GPU-0 {DEAD + 1} {5 * GIB}")
    late = [f"before 4 proc GPU-0 {DEAD + 2} {8 * GIB}", f"before 4 {gpu(0, 14 * GIB)}"]
    outcome = reclaiming(
        library,
        lambda: library.show(*late, gpu(0, 6 * GIB), f"proc GPU-0 {DEAD + 1} {5 * GIB}"),
        ReclaimRequest(frozenset({41})),
    )
    assert outcome.done and outcome.looks == 3


def test_mps_clients_are_seen(library: StandIn) -> None:
    library.show(gpu(0, GIB))
    late = [f"before 3 mps GPU-0 {DEAD} {2 * GIB}", f"proc GPU-0 {os.getpid()} 0"]
    outcome = reclaiming(library, lambda: library.show(*late, gpu(0, GIB)), ReclaimRequest(frozenset({DEAD})))
    assert outcome.done and outcome.looks == 2


@pytest.mark.parametrize("visible", ["MIG-b", "MIG-GPU-0/2/0"])
def test_mig_instance(library: StandIn, visible: str) -> None:
    """Only the chosen instance counts, by either name; the parent's memory and its other instances do not."""

    def facts(parent: int, first: int, second: int) -> tuple[str, ...]:
        return gpu(0, parent), f"mig 0 0 MIG-a 1 0 {first}", f"mig 0 2 MIG-b 2 0 {second}"

    library.show(*facts(2 * GIB, GIB, GIB))
    late = [f"before 3 proc MIG-b {DEAD} {GIB}", f"before 3 mig 0 2 MIG-b 2 0 {3 * GIB}"]
    outcome = reclaiming(
        library,
        lambda: library.show(*late, *facts(70 * GIB, 9 * GIB, GIB)),
        ReclaimRequest(frozenset({DEAD})),
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert outcome.done and outcome.looks == 2


def test_a_driver_without_process_lists_or_health(tmp_path: Path) -> None:
    old = StandIn(tmp_path, "-DWITHOUT_PROCESSES", "-DWITHOUT_HEALTH")
    old.show(gpu(0, GIB))

    async def play() -> ReclaimOutcome:
        async with opened(old) as gpus:
            await gpus.take_baseline()
            assert gpus.trouble == ""
            (health,) = gpus.healthy_state
            assert (health.ecc_uncorrected, health.recovery_action, health.nvlinks_up) == (None, None, None)
            old.show(f"before 4 {gpu(0, 9 * GIB)}", gpu(0, GIB))
            return await gpus.reclaim(ReclaimRequest(frozenset({DEAD})))

    outcome = asyncio.run(play())
    assert outcome.done and outcome.looks == 3


def test_a_hanging_call_is_bounded_and_the_driver_is_not_asked_again(library: StandIn) -> None:
    library.show(gpu(0, GIB))

    async def play() -> None:
        client = nvml.start_client(library.environment, timeout_s=0.2)
        await client.open(None, "", MARK)
        library.show(gpu(0, GIB), "hang nvmlDeviceGetMemoryInfo")
        ticks = asyncio.create_task(_count_ticks())
        with pytest.raises(NvmlHung, match=r"the NVIDIA driver did not answer within 0.2 s \(asked for: sample\)"):
            await client.sample()
        ticks.cancel()
        assert await ticks > 3, "the loop stood still"
        with pytest.raises(NvmlHung):
            await asyncio.wait_for(client.sample(), 0.05)
        await client.close()
        assert not procfs.alive(client.pid)

    asyncio.run(play())


async def _count_ticks() -> int:
    count = 0
    try:
        while True:
            await asyncio.sleep(0.01)
            count += 1
    except asyncio.CancelledError:
        return count


def test_a_driver_that_hangs_from_the_start_is_trouble(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml.NvmlClient.open, "__defaults__", (0.5,))
    library.show("hang nvmlInitWithFlags")

    async def play() -> None:
        async with opened(library) as gpus:
            assert "did not answer within 0.5 s (asked for: open)" in gpus.trouble
            await gpus.take_baseline()
            outcome = await gpus.reclaim(ReclaimRequest(frozenset()))
            assert not outcome.done and outcome.looks == 0 and "did not answer" in outcome.reason

    asyncio.run(play())


def test_a_killed_helper_is_replaced(library: StandIn) -> None:
    """By the out-of-memory killer, say: that is not held against the node."""
    library.show(gpu(0, GIB))

    async def play() -> None:
        async with opened(library) as gpus:
            await gpus.take_baseline()
            (helper,) = bystanders.PIDS
            os.kill(helper, 9)
            assert (await gpus.reclaim(ReclaimRequest(frozenset({DEAD})))).done
            assert helper not in bystanders.PIDS and len(bystanders.PIDS) == 1
            assert (await gpus.health())[0].lost == ""

    asyncio.run(play())


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        (["fail nvmlInitWithFlags * 9"], "GPUs are not watched: nvmlInit: "),
        (["fail nvmlInitWithFlags * 4"], "GPUs are not watched: nvmlInit: "),
        (["fail nvmlInitWithFlags * 999"], "GPUs are not watched: nvmlInit: Unknown Error"),
        (["fail nvmlDeviceGetCount_v2 * 999"], "GPUs are not watched: nvmlDeviceGetCount: Unknown Error"),
        ([], ""),
    ],
)
def test_no_driver_or_no_permission_is_a_note(library: StandIn, facts: list[str], note: str) -> None:
    library.show(*facts)

    async def play() -> None:
        async with opened(library) as gpus:
            assert gpus.note.startswith(note) and gpus.trouble == "" and not gpus.watched
            await gpus.take_baseline()
            assert (await gpus.reclaim(ReclaimRequest(frozenset()))).done

    asyncio.run(play())


def test_xid_events_arrive_by_themselves(library: StandIn) -> None:
    library.show(gpu(0, GIB), gpu(1, GIB))

    async def play() -> None:
        arrived: asyncio.Queue[XidEvent] = asyncio.Queue()
        gpus = await open_gpus(library.environment, MARK, arrived.put_nowait)
        library.show(gpu(0, GIB), gpu(1, GIB), "xid GPU-1 79", "xid GPU-0 31")
        first = await asyncio.wait_for(arrived.get(), 5)
        second = await asyncio.wait_for(arrived.get(), 5)
        assert [first, second] == gpus.xids == [XidEvent("GPU-1", 1, 79), XidEvent("GPU-0", 0, 31)]
        await gpus.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (["fail nvmlDeviceGetMemoryInfo GPU-0 15"], "GPU 0 (GPU-0) has fallen off the bus"),
        (["fail nvmlDeviceGetComputeRunningProcesses_v3 GPU-0 16"], "needs a reset before it can be used again"),
    ],
)
def test_a_lost_gpu_is_told_at_once(library: StandIn, facts: list[str], reason: str) -> None:
    library.show(gpu(0, GIB))
    outcome = reclaiming(library, lambda: library.show(gpu(0, GIB), *facts), ReclaimRequest(frozenset({DEAD})))
    assert not outcome.done and outcome.looks == 1 and reason in outcome.reason


def test_a_gpu_lost_before_the_start_does_not_hide_the_others(library: StandIn) -> None:
    library.show(gpu(0, GIB), gpu(1, GIB), "fail nvmlDeviceGetHandleByIndex_v2 0 15")

    async def play() -> None:
        async with opened(library) as gpus:
            lost, fine = await gpus.health()
            assert (lost.lost, fine.lost) == ("has fallen off the bus", "")

    asyncio.run(play())


def test_a_helper_that_cannot_start_says_why(library: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('a broken pynvml')\n")
    library.show(gpu(0, GIB))

    async def play() -> None:
        gpus = await open_gpus({**library.environment, "PYTHONPATH": str(tmp_path)}, MARK)
        assert gpus.note == "" and gpus.trouble == "", "PYTHONPATH must not decide what the helper imports"
        await gpus.close()
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        (tmp_path / "json.py").write_text("raise RuntimeError('a broken json')\n")
        broken = await open_gpus(library.environment, MARK)
        reason = "the process that asks the NVIDIA driver has ended: RuntimeError: a broken json"
        assert (broken.note, broken.trouble) == (f"GPUs are not watched: {reason}", "")
        assert (await broken.reclaim(ReclaimRequest(frozenset()))).done
        await broken.close()

    asyncio.run(play())


@pytest.fixture
def agent(library: StandIn) -> Iterator[subprocess.Popen[str]]:
    """A process that opens the GPUs and then waits for ever."""
    code = (
        "import asyncio, os\n"
        "from ftlaunch.launcher.gpu.keeper import Gpus\n"
        "async def main():\n"
        "    gpus = Gpus()\n"
        "    await gpus.open(os.environ, 'x')\n"
        "    print(gpus._client.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    library.show(gpu(0, GIB), "hang nvmlEventSetWait_v2")
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=library.environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_helper_ends_with_a_killed_agent_even_inside_a_call(agent: subprocess.Popen[str]) -> None:
    assert agent.stdout is not None
    helper = int(agent.stdout.readline())
    assert procfs.alive(helper)
    agent.kill()
    wait_until(lambda: not procfs.alive(helper), 5, "the helper is gone")


class TestStragglers:
    """Processes that hold a device file, told apart by the run's marker alone."""

    @pytest.fixture
    def device(self, tmp_path: Path) -> Path:
        path = tmp_path / "nvidia0"
        path.touch()
        return path

    def holder(self, device: Path, mark: str = "") -> subprocess.Popen[bytes]:
        environment = {**os.environ, **({"FTLAUNCH_MARK": mark} if mark else {})}
        with device.open() as held:
            return subprocess.Popen(
                ["sleep", "600"], env=environment, pass_fds=(held.fileno(),), start_new_session=True
            )

    def test_ours_is_killed_by_name_and_the_neighbour_lives(
        self, library: StandIn, device: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, standby, neighbour = self.holder(device, MARK), self.holder(device, MARK), self.holder(device)
        ask = nvml.NvmlClient.find_holders

        async def with_glob(client: nvml.NvmlClient, kill: bool, skip: frozenset[int]) -> object:
            return await ask(client, kill, skip, device_glob=f"{device.parent}/nvidia*")

        monkeypatch.setattr(nvml.NvmlClient, "find_holders", with_glob)
        library.show(gpu(0, GIB))
        try:
            late = [f"before 8 {gpu(0, 9 * GIB)}", gpu(0, GIB)]
            request = ReclaimRequest(frozenset(), frozenset({standby.pid}), timeout_s=5.0)
            outcome = reclaiming(library, lambda: library.show(*late), request)
            assert outcome.done
            assert [holder.pid for holder in outcome.killed] == [ours.pid]
            assert f"killed pid {ours.pid} (sleep), which this run had left behind" in describe_reclaim(outcome)
            assert ours.wait(5) == -9
            assert standby.poll() is None and neighbour.poll() is None
        finally:
            for process in (ours, standby, neighbour):
                process.kill()
                process.wait()
