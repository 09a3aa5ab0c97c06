"""The test helpers themselves: a leak is found, a job is ended with all that it started."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from support import leaks, procfs
from support.jobs import Launcher
from support.users import Unprivileged
from support.waiting import wait_until

MARKER = "FTLAUNCH_TEST_LEAK=1"


def test_wait_until_returns_the_value_and_names_what_it_waited_for() -> None:
    assert wait_until(lambda: 7) == 7
    with pytest.raises(AssertionError, match=r"0\.01 s: the impossible"):
        wait_until(lambda: None, 0.01, "the impossible")


def test_every_kind_of_leak_is_found(tmp_path: Path) -> None:
    before = leaks.take(MARKER, (tmp_path,))
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left-behind")
    thread.start()
    child = subprocess.Popen(["sleep", "600"])
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    (tmp_path / "ftlaunch-1").mkdir()
    try:
        found = "\n".join(leaks.remaining(before, MARKER, (tmp_path,)))
        for expected in ("left-behind", "sleep 600", "socket:[", str(tmp_path / "s"), "ftlaunch-1"):
            assert expected in found
        child.kill()
        wait_until(lambda: procfs.state(child.pid) == "Z")
        assert any("not reaped" in line for line in leaks.remaining(before, MARKER, (tmp_path,)))
    finally:
        go.set()
        thread.join()
        child.kill()
        child.wait()
        server.close()


def test_an_orphan_is_found_by_its_environment() -> None:
    name, _, value = MARKER.partition("=")
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    said = subprocess.run(["sh", "-c", script], env={**os.environ, name: value}, stdout=subprocess.PIPE, check=True)
    pid = int(said.stdout)
    wait_until(lambda: "sleep 600" in procfs.describe(pid))
    assert procfs.carrying(MARKER) == {pid}
    assert procfs.kill_carrying(MARKER) == {pid}
    wait_until(lambda: not procfs.carrying(MARKER))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """Runs a module that leaves a child behind when it is told to, in place of the product."""
    (tmp_path / "standin.py").write_text(
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600']) if 'leak' in sys.argv else None\n"
        "print(os.getuid(), os.environ['TMPDIR'], flush=True)\n"
        "sys.stdin.read() if 'end' in sys.argv else __import__('signal').pause()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Launcher("standin")


def test_closing_a_job_ends_it_and_reports_what_outlived_it(stand_in: Launcher) -> None:
    clean, leaky = stand_in(), stand_in("leak")
    for job in (clean, leaky):
        job.wait_for_output("\n")
        assert str(job.home) in job.out
    assert clean.close() == []
    assert ["sleep 600" in line for line in leaky.close()] == [True]
    assert not clean.home.exists() and not leaky.processes()
    stand_in.jobs.clear()


def test_waiting_for_output_ends_with_the_job(stand_in: Launcher) -> None:
    job = stand_in("end")
    with pytest.raises(AssertionError, match="ended with 0 before 'never'"):
        job.wait_for_output("never")
    assert job.wait() == 0
    assert stand_in.close() == []


def test_unprivileged_user_is_not_root_and_owns_its_directory(unprivileged: Unprivileged) -> None:
    code = "import os, sys; open(sys.argv[1], 'w').close(); print(os.getuid(), os.getgroups() == [0])"
    argv = unprivileged.command(unprivileged.python, "-c", code, str(unprivileged.home / "file"))
    said = subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd="/", text=True).stdout.split()
    assert int(said[0]) == unprivileged.uid != 0
    assert said[1] == "False"
