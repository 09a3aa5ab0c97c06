"""Checks that start processes: the user's command, storage that hangs, everything together."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.gpu.keeper import Gpus
from ftlaunch.launcher.health.command import check_command
from ftlaunch.launcher.health.result import Healthy, Unhealthy
from ftlaunch.launcher.health.runner import run_checks
from ftlaunch.launcher.health.standard import HealthSettings, standard_checks
from ftlaunch.launcher.health.storage import PathFacts, ask_paths
from ftlaunch.launcher.processes import bystanders
from support import procfs
from support.nvml import GIB, StandIn, gpu, open_gpus
from support.waiting import wait_until

T = TypeVar("T")
ENVIRONMENT = dict(os.environ)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end and see that every child was reaped."""

    async def play() -> T:
        try:
            return await work
        finally:
            assert not bystanders.PIDS

    return asyncio.run(play())


def test_the_last_line_is_the_reason() -> None:
    command = "echo checking; echo 'link mlx5_0 is down' >&2; exit 4"
    assert run(check_command(command, ENVIRONMENT)) == Unhealthy("health check", "link mlx5_0 is down (exit code 4)")
    assert run(check_command("true", ENVIRONMENT)) == Healthy("health check")
    assert run(check_command("kill -9 $$", ENVIRONMENT)) == Unhealthy("health check", "ended by SIGKILL")


def test_its_environment_is_the_one_given() -> None:
    assert run(check_command('echo "$COLOUR"; exit 1', {**ENVIRONMENT, "COLOUR": "red"})) == Unhealthy(
        "health check", "red (exit code 1)"
    )


def test_a_check_that_hangs_is_killed_with_its_whole_session(tmp_path: Path) -> None:
    """Also a child in a process group of its own, as job control makes them, and one that ignores SIGTERM."""
    pids = tmp_path / "pids"
    command = f"trap '' TERM; sleep 600 & echo $! >>{pids}; set -m; sleep 600 & echo $! >>{pids}; echo started; wait"
    result = run(check_command(command, ENVIRONMENT, 0.5))
    assert result == Unhealthy("health check", "did not end within 0.5 s: started")
    left = [int(line) for line in pids.read_text().split()]
    assert len(left) == 2
    wait_until(lambda: not any(procfs.alive(pid) for pid in left), 5, "its children are gone")


def test_a_child_left_behind_holding_the_output_is_not_waited_for() -> None:
    assert run(check_command("sleep 600 & echo done", ENVIRONMENT, 30.0)) == Healthy("health check")


def test_much_output_neither_blocks_nor_fills_memory() -> None:
    command = "head -c 30000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 1"
    assert run(check_command(command, ENVIRONMENT, 30.0)) == Unhealthy("health check", "the end (exit code 1)")


def test_cancelling_kills_the_check() -> None:
    async def play() -> int:
        task = asyncio.ensure_future(check_command("sleep 600", ENVIRONMENT))
        await asyncio.sleep(0)
        (pid,) = bystanders.PIDS
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while bystanders.PIDS:
            await asyncio.sleep(0.005)
        return pid

    assert not procfs.alive(run(play()))


def test_a_stolen_exit_code_is_not_taken_for_health() -> None:
    """Somebody who reaps every child of this process gets there first."""

    async def play() -> object:
        task = asyncio.ensure_future(check_command("exit 0", ENVIRONMENT))
        await asyncio.sleep(0)
        (pid,) = bystanders.PIDS
        os.waitpid(pid, 0)
        return await task

    assert run(play()) == Unhealthy("health check", "its exit code was lost")


def test_what_cannot_be_started_is_said_in_one_line() -> None:
    async def play() -> None:
        with pytest.raises(SpawnError, match=r"cannot start /nowhere/at/all: No such file or directory"):
            bystanders.start(["/nowhere/at/all"], ENVIRONMENT)

    run(play())


def test_paths_are_asked_where_they_would_be_created(tmp_path: Path) -> None:
    missing = str(tmp_path / "not" / "yet" / "there")
    odd = tmp_path / "new\nline €"
    odd.mkdir()
    facts = run(ask_paths([missing, str(odd), "/dev/shm"], 20.0, ENVIRONMENT))
    space = os.statvfs(tmp_path)
    assert [each.path for each in facts] == [missing, str(odd), "/dev/shm"]
    assert all(each.answered and not each.error and each.total > 0 for each in facts)
    assert facts[0].total == facts[1].total == space.f_blocks * space.f_frsize
    assert run(ask_paths([], 1.0, ENVIRONMENT)) == ()


def test_a_path_that_never_answers_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead mount, played by a probe that hangs for one path."""
    from ftlaunch.launcher.health import storage

    probe = tmp_path / "probe.py"
    source = storage._PROBE.read_text()
    probe.write_text(
        source.replace(
            "def ask(",
            "def ask(path):\n    threading.Event().wait(path == '/dead' and 600 or 0)\n"
            "    return really_ask(path)\n\n\ndef really_ask(",
        )
    )
    monkeypatch.setattr(storage, "_PROBE", probe)
    dead, alive = run(ask_paths(["/dead", "/dev/shm"], 1.5, ENVIRONMENT))
    assert dead == PathFacts("/dead", answered=False)
    assert alive.answered and alive.total > 0


def test_a_stopped_check_is_killed_too() -> None:
    command = "kill -STOP $$; exit 0"
    assert run(check_command(command, ENVIRONMENT, 0.3)) == Unhealthy("health check", "did not end within 0.3 s")


def test_a_round_on_a_machine_without_gpus(tmp_path: Path) -> None:
    settings = HealthSettings((str(tmp_path),), environment=ENVIRONMENT)

    async def play() -> None:
        gpus = Gpus("no driver")
        checks = standard_checks(gpus, settings)
        assert [check.name for check in checks] == ["memory", "storage"]
        assert (await run_checks(checks, settings.deadline_s)).healthy
        cheap = standard_checks(gpus, settings, cheap=True)
        assert [check.name for check in cheap] == ["memory"]
        assert (await run_checks(cheap, 1.0)).healthy

    run(play())


def test_a_gpu_that_falls_ill_while_the_job_runs(tmp_path: Path) -> None:
    driver = StandIn(tmp_path)
    well = [gpu(0, GIB), "ecc GPU-0 4", "remap GPU-0 0 0", "recovery GPU-0 0", "links GPU-0 4 -1"]
    settings = HealthSettings(environment=ENVIRONMENT)

    async def play() -> None:
        driver.show(*well)
        gpus = await open_gpus(driver.environment, "mark")
        await gpus.take_baseline()
        checks = [check for check in standard_checks(gpus, settings, cheap=True) if check.name == "GPU"]
        assert (await run_checks(checks, 5.0)).healthy
        driver.show(gpu(0, GIB), "ecc GPU-0 5", "remap GPU-0 1 0", "recovery GPU-0 1", "links GPU-0 4 2")
        health = await run_checks(checks, 5.0)
        assert health.reason == (
            "GPU: GPU 0 (GPU-0): the driver asks to reset the GPU; "
            "GPU: GPU 0 (GPU-0): a row remap is pending until the GPU is reset; "
            "GPU: GPU 0 (GPU-0): 1 uncorrectable ECC error since the job came here; "
            "GPU: GPU 0 (GPU-0): NVLink 2 went down since the job came here"
        )
        driver.show(*well, "fail nvmlDeviceGetTotalEccErrors GPU-0 15")
        assert (await run_checks(checks, 5.0)).reason == "GPU: GPU 0 (GPU-0) has fallen off the bus"
        await gpus.close()

    run(play())


def test_a_bystander_that_was_reaped_is_not_signalled() -> None:
    """Killing one that was reaped must not hit whoever has its number now."""

    async def play() -> None:
        child = bystanders.start([sys.executable, "-c", "pass"], ENVIRONMENT)
        assert await child.wait(20)
        child.kill()
        child.close()
        assert child.exited.result() == 0

    run(play())
