"""Stopping real process trees: groups, handlers, stopped ranks, escapees."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ftlaunch.launcher.config import StopConfig
from ftlaunch.launcher.decision.actions import Manner
from ftlaunch.launcher.host import kernel, proctree
from ftlaunch.launcher.processes import orphans
from ftlaunch.launcher.processes.process import SpawnSpec, WorkerProcess, spawn
from ftlaunch.launcher.processes.teardown import Teardown

READY = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); "
BLOCK = "import signal; signal.pause()"
HANDLE = "import signal; signal.signal(15, lambda *a: {}); "


async def started(code: str, *argv: str) -> WorkerProcess:
    """A worker that has printed its first line."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    worker = spawn(SpawnSpec([sys.executable, "-c", code, *argv], environment, stdout=writing))
    os.close(writing)
    worker.watch(lambda exited: None)
    line = await asyncio.get_running_loop().run_in_executor(None, os.read, reading, 6)
    os.close(reading)
    assert line == b"ready\n"
    return worker


def teardown_of(workers: list[WorkerProcess], **config: float) -> Teardown:
    return Teardown(workers, StopConfig(**config), lambda: ())  # type: ignore[arg-type]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run in a process of its own: being a subreaper cannot be undone."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            kernel.become_subreaper()
            asyncio.run(scenario())  # type: ignore[arg-type]
            code = 0
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_rank_without_handler_is_killed_at_once_although_the_grace_is_long() -> None:
    async def scenario() -> None:
        worker = await started(READY + BLOCK)
        teardown = teardown_of([worker], kill_grace_s=60.0)
        assert await asyncio.wait_for(teardown.run(Manner.FAILED), 20) == ()
        assert worker.exit_code == -signal.SIGKILL
        assert teardown.killed == {worker.pid} and not teardown.asked

    run(scenario)


def test_rank_with_handler_is_asked_first_and_may_end_by_itself() -> None:
    async def scenario() -> None:
        worker = await started(HANDLE.format("sys.exit(7)") + "import sys; " + READY + BLOCK)
        teardown = teardown_of([worker], kill_grace_s=60.0)
        assert await asyncio.wait_for(teardown.run(Manner.FAILED), 20) == ()
        assert worker.exit_code == 7 and teardown.asked == {worker.pid} and not teardown.killed

    run(scenario)


@pytest.mark.parametrize("manner", [Manner.FAILED, Manner.POLITE])
def test_rank_that_ignores_the_polite_signal_is_killed_after_the_grace(manner: Manner) -> None:
    async def scenario() -> None:
        worker = await started(HANDLE.format("None") + READY + "\nwhile True: signal.pause()")
        teardown = teardown_of([worker], kill_grace_s=0.1, shutdown_timeout_s=0.1)
        assert await asyncio.wait_for(teardown.run(manner), 20) == ()
        assert worker.exit_code == -signal.SIGKILL and teardown.asked == {worker.pid}

    run(scenario)


def test_stopped_rank_is_killed_at_once_although_it_has_a_handler() -> None:
    async def scenario() -> None:
        worker = await started(HANDLE.format("None") + READY + "import os; os.kill(os.getpid(), 19)\n" + BLOCK)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
        teardown = teardown_of([worker], kill_grace_s=60.0)
        assert await asyncio.wait_for(teardown.run(Manner.FAILED), 20) == ()
        assert worker.exit_code == -signal.SIGKILL and not teardown.asked

    run(scenario)


def test_polite_stop_wakes_a_stopped_rank_so_that_it_can_save() -> None:
    async def scenario() -> None:
        worker = await started(HANDLE.format("sys.exit(0)") + "import sys; " + READY + BLOCK)
        worker.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
        await asyncio.wait_for(teardown_of([worker], shutdown_timeout_s=60.0).run(Manner.POLITE), 20)
        assert worker.exit_code == 0

    run(scenario)


def test_hurry_ends_a_long_grace() -> None:
    async def scenario() -> None:
        worker = await started(HANDLE.format("None") + READY + "\nwhile True: signal.pause()")
        teardown = teardown_of([worker], shutdown_timeout_s=600.0)
        stopping = asyncio.ensure_future(teardown.run(Manner.POLITE))
        while not teardown.asked:
            await asyncio.sleep(0)
        teardown.hurry()
        assert await asyncio.wait_for(stopping, 20) == ()

    run(scenario)


def test_polite_signal_goes_to_the_leader_only(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, signal, os\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "def save(*a):\n"
        "    open(sys.argv[1], 'w').write(str(child.poll()))\n"
        "    sys.exit(0)\n"
        "signal.signal(15, save)\n" + READY + BLOCK
    )

    async def scenario() -> None:
        worker = await started(code, str(tmp_path / "seen"))
        await asyncio.wait_for(teardown_of([worker], shutdown_timeout_s=60.0).run(Manner.POLITE), 20)
        assert (tmp_path / "seen").read_text() == "None"

    run(scenario)


ESCAPES = {
    "child": "subprocess.Popen(['sleep', '600'])",
    "setsid": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "double fork": "subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & exit 0'])",
    "clean environment": "subprocess.Popen(['env', '-i', '/bin/sleep', '600'], start_new_session=True)",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
@pytest.mark.parametrize("ends", ["by itself", "when killed"])
def test_nothing_below_a_rank_survives(escape: str, ends: str) -> None:
    async def scenario() -> None:
        code = "import subprocess\n" + escape + "\n" + READY + ("" if ends == "by itself" else BLOCK)
        worker = await started(code)
        if ends == "by itself":
            await worker.exited
        manner = Manner.SWEEP if ends == "by itself" else Manner.FAILED
        assert await asyncio.wait_for(teardown_of([worker]).run(manner), 20) == ()
        orphans.reap_adopted(())
        assert proctree.descendants(proctree.read_table(), os.getpid()) == []

    run(scenario)


def test_reaping_adopted_children_leaves_a_known_one_alone() -> None:
    async def scenario() -> None:
        worker = await started(READY + "sys.exit(5)")
        stranger = subprocess.Popen(["true"])
        os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
        await worker.exited
        assert orphans.reap_adopted({worker.pid}) == [stranger.pid]
        stranger.returncode = 0
        assert worker.exit_code == 5
        worker.reap()

    run(scenario)
