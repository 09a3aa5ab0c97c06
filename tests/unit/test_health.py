"""What counts as unfit, as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ftlaunch.launcher.gpu.model import DeviceHealth, XidEvent
from ftlaunch.launcher.gpu.nvml_errors import NvmlDead, NvmlHung
from ftlaunch.launcher.health.command import judge_command, last_line
from ftlaunch.launcher.health.gpus import check_gpus
from ftlaunch.launcher.health.memory import check_memory
from ftlaunch.launcher.health.result import Health, Healthy, Result, Unhealthy
from ftlaunch.launcher.health.runner import Check, run_checks
from ftlaunch.launcher.health.storage import PathFacts, check_path, check_shm
from ftlaunch.launcher.health.termination_log import choose_path, cut, write_termination_log
from ftlaunch.launcher.host.visible import Device
from ftlaunch.launcher.processes.bystanders import Finished

MIB, GIB = 1 << 20, 1 << 30
FINE = DeviceHealth(Device("GPU-a", 0, "H100"), "", 5, False, False, 0, (0, 1, 2))


def reasons(results: Sequence[Result]) -> list[str]:
    return [result.reason for result in results if isinstance(result, Unhealthy)]


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (FINE, ""),
        (DeviceHealth(FINE.device), ""),
        (replace(FINE, ecc_uncorrected=7), "2 uncorrectable ECC errors since the job came here"),
        (replace(FINE, ecc_uncorrected=6), "1 uncorrectable ECC error since the job came here"),
        (replace(FINE, ecc_uncorrected=0), ""),
        (replace(FINE, remap_pending=True), "a row remap is pending until the GPU is reset"),
        (replace(FINE, remap_pending=True, remap_failed=True), "row remapping has failed, the GPU has to be replaced"),
        (replace(FINE, recovery_action=2), "the driver asks to reboot the node"),
        (replace(FINE, recovery_action=99), "the driver asks to recovery action 99"),
        (replace(FINE, nvlinks_up=(0,)), "NVLink 1, 2 went down since the job came here"),
        (replace(FINE, nvlinks_up=(0, 1, 2, 3)), ""),
    ],
)
def test_gpu(now: DeviceHealth, reason: str) -> None:
    assert reasons(check_gpus([now], [FINE])) == ([f"GPU 0 (GPU-a): {reason}"] if reason else [])


def test_gpu_that_is_gone() -> None:
    assert reasons(check_gpus([DeviceHealth(FINE.device, "has fallen off the bus")], [FINE])) == [
        "GPU 0 (GPU-a) has fallen off the bus"
    ]


def test_what_was_wrong_before_the_job_came_is_not_held_against_the_node_except_what_needs_a_reset() -> None:
    assert reasons(check_gpus([replace(FINE, ecc_uncorrected=900)])) == []
    assert len(reasons(check_gpus([replace(FINE, remap_pending=True)]))) == 1


def test_only_hardware_xids_count() -> None:
    xids = [XidEvent("GPU-a", 0, number) for number in (13, 31, 43, 45, 94, 79, 79)]
    assert reasons(check_gpus([FINE], [FINE], xids)) == ["GPU 0 (GPU-a): Xid 79, fallen off the bus"]


def test_a_driver_that_hangs_is_unfit() -> None:
    assert reasons(check_gpus([], trouble="the NVIDIA driver did not answer")) == ["the NVIDIA driver did not answer"]


def test_uneven_nvlinks_are_told_but_not_held_against_the_node() -> None:
    other = replace(FINE, device=Device("GPU-b", 1, "H100"), nvlinks_up=(0,))
    (result,) = check_gpus([FINE, other], [FINE, other])
    assert result == Healthy("GPU", "GPU 1 has 1 NVLinks up, others of its kind have 3")


PRESSURE = "some avg10=99.00 avg60=90.00 avg300=9 total=1\nfull avg10=80.00 avg60={} avg300=9.00 total=1\n"
MEMINFO = "MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:   {} kB\n"


@pytest.mark.parametrize(
    ("stalled", "available", "unhealthy", "noted"),
    [
        ("70.00", 10_000, True, False),
        ("70.00", 600_000, False, False),
        ("10.00", 10_000, False, True),
        ("0.00", 600_000, False, False),
        ("nonsense", 600_000, False, False),
    ],
)
def test_memory(stalled: str, available: int, unhealthy: bool, noted: bool) -> None:
    result = check_memory(PRESSURE.format(stalled), MEMINFO.format(available))
    assert isinstance(result, Unhealthy) is unhealthy
    assert bool(isinstance(result, Healthy) and result.note) is noted
    if isinstance(result, Unhealthy):
        assert result.reason == ("everything waited for memory 70 % of the last minute, 9.8 MiB of 976.6 MiB available")


def test_memory_where_the_kernel_does_not_say() -> None:
    assert check_memory("", "") == Healthy("memory")
    assert check_memory("", MEMINFO.format(500_000)) == Healthy("memory")


ROOM = PathFacts("/ckpt", free=9 * GIB, total=90 * GIB, files_left=1000)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (ROOM, ""),
        (
            replace(ROOM, answered=False),
            "/ckpt did not answer within 10 s: its file system hangs (a dead network mount?)",
        ),
        (replace(ROOM, error="Stale file handle"), "/ckpt can't be reached: Stale file handle"),
        (replace(ROOM, free=MIB), "only 1 MiB free at /ckpt, needed are 64 MiB"),
        (replace(ROOM, files_left=0), "no more files can be made at /ckpt: it is out of inodes"),
        (replace(ROOM, files_left=None), ""),
        (replace(ROOM, free=0, total=0), ""),
    ],
)
def test_storage(facts: PathFacts, reason: str) -> None:
    assert reasons([check_path(facts, 10.0)]) == ([reason] if reason else [])


def test_a_read_only_place_is_told() -> None:
    assert check_path(replace(ROOM, read_only=True), 10.0) == Healthy("disk", "/ckpt is on a read-only file system")


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (60 * MIB, 64 * MIB, Healthy("shm")),
        (2 * MIB, 64 * MIB, Healthy("shm", "only 2 MiB of 64 MiB free at /dev/shm")),
        (0, 64 * MIB, None),
        (8 * GIB, 1000 * GIB, Healthy("shm", "only 8 GiB of 1000 GiB free at /dev/shm")),
        (0, 0, Healthy("shm")),
    ],
)
def test_shm(free: int, total: int, expected: Result | None) -> None:
    result = check_shm(PathFacts("/dev/shm", free=free, total=total))
    if expected is None:
        assert isinstance(result, Unhealthy) and "--clean-shm" in result.reason
    else:
        assert result == expected


@pytest.mark.parametrize(
    ("finished", "expected"),
    [
        (Finished(0, b"fine\n"), Healthy("health check")),
        (Finished(3, b"one\nlink mlx5_0 is down\n\n"), Unhealthy("health check", "link mlx5_0 is down (exit code 3)")),
        (Finished(7, b""), Unhealthy("health check", "exit code 7")),
        (Finished(-11, b"x"), Unhealthy("health check", "x (ended by SIGSEGV)")),
        (Finished(None, b"at 3 of 8\n", True), Unhealthy("health check", "did not end within 5 s: at 3 of 8")),
        (Finished(None, b""), Unhealthy("health check", "its exit code was lost")),
    ],
)
def test_command(finished: Finished, expected: Result) -> None:
    assert judge_command(finished, 5.0) == expected


def test_last_line_is_one_printable_line() -> None:
    assert last_line(b"\x1b[31mred\xff\r\n") == " [31mred�"
    assert len(last_line(b"x" * 9000)) == 300
    assert last_line(b"\n \n") == ""


def test_checks_run_side_by_side_and_silence_is_an_answer() -> None:
    order: list[str] = []

    async def quick() -> tuple[Result, ...]:
        order.append("quick")
        return (Healthy("quick", "noted"), Unhealthy("quick", "broken"))

    async def stuck() -> tuple[Result, ...]:
        order.append("stuck")
        try:
            await asyncio.Event().wait()
        finally:
            order.append("cancelled")
        return ()

    async def dead() -> tuple[Result, ...]:
        raise NvmlHung("the driver hangs")

    async def unknown() -> tuple[Result, ...]:
        raise NvmlDead("the helper was killed")

    checks = [Check("stuck", stuck), Check("quick", quick), Check("GPU", dead), Check("other", unknown)]
    health = asyncio.run(run_checks(checks, 0.05))
    assert order == ["stuck", "quick", "cancelled"]
    assert not health.healthy and health.notes == (
        "noted",
        "other check could not be run: the helper was killed",
    )
    assert health.reason == "stuck: no answer within 0.05 s; quick: broken; GPU: the driver hangs"
    assert asyncio.run(run_checks([], 1.0)) == Health() and Health().healthy


def test_a_defect_of_a_check_is_not_an_answer() -> None:
    async def wrong() -> tuple[Result, ...]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_checks([Check("wrong", wrong)], 1.0))


def test_termination_log(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    assert choose_path(None, str(log)) == ""
    log.write_text("an old and much longer reason")
    assert choose_path(None, str(log)) == str(log)
    assert choose_path("", str(log)) == "" and choose_path("/elsewhere", str(log)) == "/elsewhere"
    inode = log.stat().st_ino
    assert write_termination_log(str(log), "GPU 0 is gone") == ""
    assert log.read_text() == "GPU 0 is gone" and log.stat().st_ino == inode
    assert write_termination_log("", "nowhere to go") == ""
    assert write_termination_log(str(tmp_path), "x") == f"the reason could not be written to {tmp_path}: Is a directory"


def test_a_long_reason_is_cut_between_characters() -> None:
    text = "x" * 4095 + "€uro"
    assert cut(text) == b"x" * 4095
    assert cut("bad \udcff surrogate") == b"bad ? surrogate"
