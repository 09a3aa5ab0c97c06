"""States of real processes, as the agent sees them: stopped, traced, stuck in the kernel, without a main thread."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch.heartbeat import stackdump
from ftlaunch.heartbeat.watching import procstate
from ftlaunch.heartbeat.watching.procstate import ProcState
from ftlaunch.heartbeat.watching.stackread import StackSnapshot, parse_faulthandler
from ftlaunch.heartbeat.watching.stalls import works
from ftlaunch.launcher.host import proctree
from support import procfs
from support.ranks import BOOTSTRAP
from support.waiting import wait_until

READY = "import os, sys, time, threading, signal, ctypes, subprocess\nsay = lambda: print('ready', flush=True)\n"
PTRACE_SEIZE = 0x4206  # linux/ptrace.h


@contextlib.contextmanager
def running(body: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child that has said ``ready``; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", READY + body, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def look(pid: int) -> ProcState:
    state = procstate.read(pid, children=True)
    assert state is not None
    return state


def test_stopped_and_continued() -> None:
    with running("say(); signal.pause()") as child:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: look(child.pid).state == "T")
        assert not look(child.pid).traced
        child.send_signal(signal.SIGCONT)
        wait_until(lambda: look(child.pid).state == "S")


def test_traced_by_ptrace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with running("say(); signal.pause()") as child:
        if libc.ptrace(PTRACE_SEIZE, child.pid, None, None) != 0:
            pytest.skip("ptrace is not allowed here")
        state = look(child.pid)
        assert state.traced and state.tracer_pid == os.getpid()


def test_traced_by_a_debugger() -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is missing")
    with running("say(); signal.pause()") as child:
        gdb = subprocess.Popen(
            ["gdb", "-q", "-nx", "-p", str(child.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: look(child.pid).traced, 30)
            assert look(child.pid).state in "tS"
        finally:
            gdb.communicate(b"detach\nquit\n", timeout=30)
        wait_until(lambda: not look(child.pid).traced)


def test_main_thread_gone_while_another_lives_on() -> None:
    body = """
def live():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
    say(); sys.stdin.read(); os._exit(0)
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)  # exit(2): this thread only
"""
    with running(body) as child:
        state = look(child.pid)
        assert (state.state, state.threads, state.living_threads) == ("Z", 2, 1)


def test_uninterruptible_sleep(tmp_path: Path) -> None:
    """A parent in vfork waits in state D until its child has executed, here until somebody opens the FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    body = """
actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
say()
os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, file_actions=actions), 0)
"""
    with running(body, str(fifo)) as child:
        wait_until(lambda: look(child.pid).state == "D")
        first, second = look(child.pid), look(child.pid)
        assert first.switches == second.switches, "it sleeps in one place"
        with open(fifo, "wb"):
            wait_until(lambda: child.poll() is not None)


def test_belonging_through_a_session_of_its_own() -> None:
    body = "p = subprocess.Popen(['sleep', '60'], start_new_session=True); say(); print(p.pid, flush=True); p.wait()"
    with running("say(); signal.pause()") as stranger, running(body) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        try:
            assert procstate.belongs_to(grandchild, child.pid)
            assert procstate.belongs_to(child.pid, child.pid)
            assert not procstate.belongs_to(stranger.pid, child.pid)
            assert not procstate.belongs_to(os.getppid(), child.pid)
        finally:
            os.kill(grandchild, signal.SIGKILL)


# -- work and stuckness ---------------------------------------------------------------------------------------------

WINDOW_S = 0.5


def observed(pid: int) -> bool:
    """Whether the process works, looked at twice half a second apart."""
    before = look(pid)
    threading.Event().wait(WINDOW_S)
    return works(before, look(pid), WINDOW_S)


@contextlib.contextmanager
def without_children(pid: int) -> Iterator[None]:
    """Kill the children of a process at the end: they would outlive it."""
    try:
        yield
    finally:
        for child in procfs.children(pid):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "threading.Event().wait()",
        "signal.pause()",
        "os.read(os.pipe()[0], 1)",
        "subprocess.Popen(['sleep', '60']).wait()",
        "threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start(); signal.pause()",
    ],
    ids=["spins", "waits for a lock", "pauses", "reads", "waits for an idle child", "another thread spins"],
)
def test_a_stuck_process_does_not_seem_to_work(body: str) -> None:
    with running(f"say()\n{body}") as child, without_children(child.pid):
        # Not at once: it is still on its way there.
        assert wait_until(lambda: not observed(child.pid))
        assert not observed(child.pid)


@pytest.mark.parametrize(
    "body",
    [
        "while True: time.sleep(0.02)",
        "while True: bytearray(32 << 20)",
        "p = subprocess.Popen([sys.executable, '-c', 'while True: pass']); p.wait()",
    ],
    ids=["sleeps and wakes", "uses memory", "its child computes"],
)
def test_a_process_that_does_something_seems_to_work(body: str) -> None:
    with running(f"say()\n{body}") as child, without_children(child.pid):
        assert wait_until(lambda: observed(child.pid))


# -- stacks ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def rank(script: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A rank started as the agent does it, with a file for its stacks."""
    dump_fd = os.memfd_create("stacks", 0)
    import fcntl

    fcntl.fcntl(dump_fd, fcntl.F_SETFL, fcntl.fcntl(dump_fd, fcntl.F_GETFL) | os.O_APPEND)
    child = subprocess.Popen(
        [sys.executable, "-u", BOOTSTRAP, "script", str(script)],
        env={**os.environ, "FTLAUNCH_DUMP_FD": str(dump_fd)},
        pass_fds=(dump_fd,),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child, dump_fd
    finally:
        child.kill()
        child.communicate()
        os.close(dump_fd)


def collect(pid: int, dump_fd: int) -> StackSnapshot:
    """Ask for its stacks, which takes milliseconds."""
    assert proctree.has_handler(pid, stackdump.DUMP_SIGNAL)
    os.ftruncate(dump_fd, 0)
    os.kill(pid, stackdump.DUMP_SIGNAL)
    read = lambda: os.pread(dump_fd, 1 << 20, 0).decode()  # noqa: E731
    wait_until(lambda: stackdump.is_complete(read()))
    return parse_faulthandler(read())


@pytest.mark.parametrize(
    ("line", "function"),
    [("while True: pass", "stuck"), ("time.sleep(600)", "stuck"), ("threading.Event().wait()", "wait")],
)
def test_the_line_where_a_rank_is_stuck(tmp_path: Path, line: str, function: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import threading, time\ndef stuck():\n    print('ready')\n    {line}\nstuck()\n")
    with rank(script) as (child, dump_fd):
        # It may still be in the line that said so.
        wait_until(lambda: (str(script), 4, "stuck") in collect(child.pid, dump_fd).main)
        main = collect(child.pid, dump_fd).main
        assert main[0].function == function
        assert main[-1] == (str(script), 5, "<module>"), "nothing of ours below"
        assert child.poll() is None


def test_a_process_without_the_handler_is_known_as_such() -> None:
    with running("say(); signal.pause()") as child:
        assert not proctree.has_handler(child.pid, stackdump.DUMP_SIGNAL)


def test_the_dump_signal_is_not_one_that_python_or_the_c_library_uses() -> None:
    assert signal.SIGRTMIN < stackdump.DUMP_SIGNAL < signal.SIGRTMAX
