"""Rank output through real pipes: nothing lost, nothing mixed, nobody held up."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftlaunch.launcher.config import LogConfig, Stream
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.output import sink
from ftlaunch.launcher.output.console import Console
from ftlaunch.launcher.output.files import LogLayout
from ftlaunch.launcher.output.pump import OutputPump, WorkerPipes
from support.waiting import wait_until

MIB = 1 << 20


@dataclass
class Desk:
    """A pump and a console that prints into two files."""

    folder: Path
    pump: OutputPump
    console: Console

    @property
    def out(self) -> bytes:
        return (self.folder / "console.out").read_bytes()

    @property
    def err(self) -> bytes:
        return (self.folder / "console.err").read_bytes()

    def log(self, name: str) -> bytes:
        return (self.folder / "logs" / name).read_bytes()

    def close(self, report: str = "") -> None:
        assert self.pump.close(10)
        assert self.console.finish(report, 10)


@contextlib.contextmanager
def desk_in(folder: Path, config: LogConfig | None = None, out: int | None = None) -> Iterator[Desk]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    fds = [os.open(folder / f"console.{name}", flags, 0o600) for name in ("out", "err")]
    console = Console(fds[0] if out is None else out, fds[1])
    desk = Desk(folder, OutputPump(console, config or LogConfig(), LogLayout(folder / "logs")), console)
    try:
        yield desk
    finally:
        desk.pump.close(10)
        console.finish("", 10)
        for fd in fds:
            os.close(fd)


def start(pipes: WorkerPipes, code: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=pipes.stdout_fd, stderr=pipes.stderr_fd)
    pipes.close()
    return child


def rank(desk: Desk, code: str, local_rank: int = 0, generation: int = 0) -> subprocess.Popen[bytes]:
    return start(desk.pump.attach(generation, local_rank, local_rank, "default"), code)


def drain(desk: Desk, generation: int = 0) -> bool:
    return asyncio.run(desk.pump.drained(generation, 10))


def test_lines_get_a_prefix_and_files_every_byte(tmp_path: Path) -> None:
    code = r"import os; os.write(1, b'a\n\xff\xe2\x82'); os.write(1, b'\xac\nlast'); os.write(2, b'oops\n')"
    with desk_in(tmp_path) as desk:
        assert rank(desk, code).wait() == 0
        assert rank(desk, "print('b')", 1).wait() == 0
        assert drain(desk)
        desk.close()
    assert desk.log("0/0.out") == b"a\n\xff\xe2\x82\xac\nlast"
    assert desk.log("0/0.err") == b"oops\n"
    assert set(re.split(rb"(?<=\n)", desk.out)) >= {
        b"[default0]:a\n",
        b"[default0]:\xff\xe2\x82\xac\n",
        b"[default1]:b\n",
    }
    assert desk.err == b"[default0]:oops\n"


def test_the_last_lines_before_a_sigkill_are_kept(tmp_path: Path) -> None:
    code = "import os; os.write(2, b'x\\n' * 9999 + b'last words'); os.kill(os.getpid(), 9)"
    with desk_in(tmp_path) as desk:
        assert rank(desk, code).wait() == -signal.SIGKILL
        assert drain(desk)
        assert desk.pump.tail(0, 0, Stream.ERR)[-1] == b"last words"
        assert desk.pump.tail(0, 0, Stream.OUT) == []
        desk.close()
    assert desk.log("0/0.err").endswith(b"x\nlast words")
    assert desk.err.endswith(b"[default0]:last words")


def test_a_line_of_200_mb_costs_a_few_mb_here_and_holds_nobody_up(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(200): os.write(1, b'x' * (1 << 20))"
    with desk_in(tmp_path, LogConfig(redirects={1: Stream.ALL})) as desk:
        assert rank(desk, "print('warm up')").wait() == 0 and drain(desk)
        # Start the high-water mark anew (proc(5)).
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak_kib()
        assert rank(desk, code, 1, generation=1).wait() == 0
        assert rank(desk, code, 2, generation=1).wait() == 0
        assert drain(desk, 1)
        # The queue of the console (4 MiB), one line part, one pipe's worth of chunks.
        assert _peak_kib() - before < 16 * 1024
        desk.close()
        for local_rank in (1, 2):
            path = tmp_path / "logs" / "1" / f"{local_rank}.out"
            assert path.stat().st_size == 200 * MIB
            path.unlink()
        assert desk.out.count(b"\n") <= 3
    (tmp_path / "console.out").unlink()


def test_a_grandchild_that_holds_the_pipe_does_not_delay(tmp_path: Path) -> None:
    code = (
        "import os, subprocess; p = subprocess.Popen(['sleep', '600']);"
        "os.write(1, b'%d\\n' % p.pid); os.write(1, b'unfinished'); os._exit(3)"
    )
    with desk_in(tmp_path) as desk:
        assert rank(desk, code).wait() == 3
        assert drain(desk)
        grandchild, last = desk.pump.tail(0, 0, Stream.OUT)
        try:
            assert last == b"unfinished"
            desk.close("report")
            assert desk.out.endswith(b"unfinished") and desk.err == b"report\n"
        finally:
            os.kill(int(grandchild), signal.SIGKILL)


def test_a_grandchild_that_writes_for_ever_does_not_delay(tmp_path: Path) -> None:
    code = (
        "import os, subprocess; p = subprocess.Popen(['yes']); os.write(2, b'%d\\n' % p.pid);"
        "os.write(2, b'last\\n'); os._exit(3)"
    )
    config = LogConfig(redirects={None: Stream.OUT}, max_file_bytes=MIB)
    with desk_in(tmp_path, config) as desk:
        assert rank(desk, code).wait() == 3
        assert drain(desk)
        grandchild, last = desk.pump.tail(0, 0, Stream.ERR)
        try:
            assert last == b"last"
            desk.close("report")
        finally:
            os.kill(int(grandchild), signal.SIGKILL)
    assert desk.err.endswith(b"report\n")
    assert len(desk.log("0/0.out")) <= MIB and len(desk.log("0/0.out.1")) <= MIB


def test_lines_of_many_ranks_never_mix(tmp_path: Path) -> None:
    code = (
        "import sys\nfor n in range(2000): print('%s-%d' % ('x' * (n % 90), n), file=[sys.stdout, sys.stderr][n % 2])"
    )
    with desk_in(tmp_path) as desk:
        children = [rank(desk, code, local_rank) for local_rank in range(4)]
        assert [child.wait() for child in children] == [0] * 4
        assert drain(desk)
        desk.close()
    for output, parity in ((desk.out, 0), (desk.err, 1)):
        lines = output.decode().splitlines()
        for local_rank in range(4):
            own = [line for line in lines if line.startswith(f"[default{local_rank}]:")]
            assert own == [f"[default{local_rank}]:{'x' * (n % 90)}-{n}" for n in range(parity, 2000, 2)]
        assert len(lines) == 4000


def test_a_blocked_console_drops_lines_and_files_do_not(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    code = "for n in range(200_000): print('%0100d' % n)"
    with desk_in(tmp_path, out=write_end) as desk:
        assert rank(desk, code).wait() == 0
        assert drain(desk)
        assert desk.log("0/0.out").count(b"\n") == 200_000
        collected = bytearray()
        reader = threading.Thread(target=lambda: collected.extend(_read_all(read_end)))
        reader.start()
        desk.close("the report")
        os.close(write_end)
        reader.join()
    shown = collected.splitlines()
    assert shown == [b"[default0]:%0100d" % n for n in range(len(shown))]
    assert b"%d lines (" % (200_000 - len(shown)) in desk.err
    assert desk.err.endswith(b"\nthe report\n")
    os.close(read_end)


def test_a_console_that_never_moves_again_does_not_hang_the_end(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with desk_in(tmp_path, out=write_end) as desk:
        assert rank(desk, "print('x' * 3_000_000)").wait() == 0
        assert desk.pump.close(10)
        assert not desk.console.finish("the report", 0.2)
        wait_until(lambda: desk.err.endswith(b"the report\n"))
        # Only so that the writer can end before the test does.
        os.close(read_end)
        wait_until(lambda: not any(thread.name == "ftlaunch-console" for thread in threading.enumerate()))
        os.close(write_end)


def test_a_busy_console_keeps_a_burst_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "STUCK_S", 30.0)
    monkeypatch.setattr(sink, "PATIENCE_S", 30.0)
    read_end, write_end = os.pipe()
    console = Console(write_end, write_end)
    collected = bytearray()
    reader = threading.Thread(target=lambda: collected.extend(_read_all(read_end)))
    reader.start()
    for _ in range(40):
        console.show(False, 0, b"", [b"x" * (MIB - 1) + b"\n"])
    assert console.finish("", 10)
    os.close(write_end)
    reader.join()
    os.close(read_end)
    assert len(collected) == 40 * MIB


def test_a_console_that_hangs_up_leaves_the_job_alone(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with desk_in(tmp_path, out=write_end) as desk:
        assert rank(desk, "for n in range(1000): print(n)").wait() == 0
        assert rank(desk, "import sys; print('still here', file=sys.stderr)", 1).wait() == 0
        assert drain(desk)
        desk.close()
    os.close(write_end)
    assert desk.log("0/0.out").count(b"\n") == 1000
    assert desk.err.count(b"stdout is gone (Broken pipe)") == 1
    assert b"[default1]:still here\n" in desk.err


def test_a_terminal_that_hangs_up_leaves_the_job_alone(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    with desk_in(tmp_path, out=terminal) as desk:
        assert rank(desk, "print('hello')").wait() == 0
        assert drain(desk)
        assert b"[default0]:hello" in os.read(master, 1000)
        os.close(master)
        assert rank(desk, "for n in range(1000): print(n)", generation=1).wait() == 0
        assert drain(desk, 1)
        desk.close()
    os.close(terminal)
    assert desk.log("1/0.out").count(b"\n") == 1000
    assert b"stdout is gone" in desk.err


def test_a_non_blocking_console_is_waited_for(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with desk_in(tmp_path, out=write_end) as desk:
        assert rank(desk, "for n in range(2000): print('%0100d' % n)").wait() == 0
        assert drain(desk)
        collected = bytearray()
        reader = threading.Thread(target=lambda: collected.extend(_read_all(read_end)))
        reader.start()
        desk.close()
        os.close(write_end)
        reader.join()
    os.close(read_end)
    assert collected == b"".join(b"[default0]:%0100d\n" % n for n in range(2000))


def test_a_full_disk_costs_one_line_and_the_console_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs" / "0").mkdir(parents=True)
    for name in ("0.out", "0.err", "1.out"):
        (tmp_path / "logs" / "0" / name).symlink_to("/dev/full")
    code = "import sys\nfor n in range(500): print(n); print(n, file=sys.stderr)"
    with desk_in(tmp_path) as desk:
        assert [rank(desk, code, local_rank).wait() for local_rank in range(2)] == [0, 0]
        assert drain(desk)
        desk.close()
    assert desk.err.count(b"No space left on device") == 1
    assert desk.out.count(b"\n") == 1000
    assert desk.log("0/1.err").count(b"\n") == 500


def test_logs_that_cannot_be_made_leave_the_console(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with desk_in(tmp_path) as desk:
        assert rank(desk, "print('hello')").wait() == 0
        assert drain(desk)
        desk.close()
    assert desk.out == b"[default0]:hello\n"
    assert desk.err.startswith(b"[ftlaunch] cannot write ")


def test_a_prompt_is_shown_before_its_line_ends(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        pipes = desk.pump.attach(0, 0, 0, "default")
        os.write(pipes.stdout_fd, b"name? ")
        wait_until(lambda: desk.out == b"[default0]:name? ")
        os.write(pipes.stdout_fd, b"me\n")
        wait_until(lambda: desk.out == b"[default0]:name? me\n")
        pipes.close()
        desk.close()


def test_a_standby_speaks_as_the_rank_it_becomes(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        idle, unused = desk.pump.attach_idle("s1"), desk.pump.attach_idle("s2")
        assert start(unused, "print('never shown')").wait() == 0
        os.write(idle.stdout_fd, b"imported\nhalf ")
        assert drain(desk)
        assert desk.out == b""
        desk.pump.promote("s1", 3, 9, 1, "default")
        os.write(idle.stdout_fd, b"line\n")
        idle.close()
        desk.pump.discard("s2")
        assert drain(desk, 3)
        assert desk.pump.tail(3, 1, Stream.OUT) == [b"imported", b"half line"]
        desk.close()
    assert desk.out == b"[default1]:imported\n[default1]:half line\n"
    assert desk.log("3/9.out") == b"imported\nhalf line\n"
    assert os.listdir(tmp_path / "logs") == ["3"]


def test_a_chatty_standby_is_neither_blocked_nor_kept_whole(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        assert start(desk.pump.attach_idle("s"), "for n in range(300_000): print(n)").wait() == 0
        desk.pump.promote("s", 0, 0, 0, "default")
        assert drain(desk)
        desk.close()
    kept = desk.log("0/0.out")
    assert len(kept) <= 65536 and kept.endswith(b"299999\n")


def test_lines_that_match_a_filter_are_collected(tmp_path: Path) -> None:
    config = LogConfig(stdout_filters=("loss=", "ä"), redirects={None: Stream.OUT})
    code = "print('step 1 loss=2'); print('noise'); print('bär'); import sys; print('loss=', file=sys.stderr)"
    with desk_in(tmp_path, config) as desk:
        for local_rank in range(2):
            assert rank(desk, code, local_rank).wait() == 0
        assert drain(desk)
        desk.close()
    lines = desk.log("0/filtered_stdout.log").decode().splitlines()
    assert sorted(lines) == sorted(f"[default{n}]:{text}" for n in range(2) for text in ("step 1 loss=2", "bär"))
    assert not (tmp_path / "logs" / "0" / "filtered_stderr.log").exists()
    assert desk.out == b""


def test_tails_of_old_generations_are_forgotten(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        for generation in range(4):
            assert rank(desk, f"print({generation})", generation=generation).wait() == 0
            assert drain(desk, generation)
        tails = [desk.pump.tail(generation, 0, Stream.OUT) for generation in range(4)]
        assert tails == [[], [], [b"2"], [b"3"]]
        desk.close()


def test_no_thread_takes_signals_and_no_descriptor_is_inherited(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        pipes = desk.pump.attach(0, 0, 0, "default")
        os.write(pipes.stdout_fd, b"x\n")
        wait_until(lambda: desk.out)
        assert not os.get_inheritable(pipes.stdout_fd) and not os.get_inheritable(pipes.stderr_fd)
        assert os.get_blocking(pipes.stdout_fd)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("ftlaunch-")]
        assert {thread.name for thread in threads} == {"ftlaunch-output", "ftlaunch-console"}
        for thread in threads:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)  # type: ignore[index]
            assert blocked >> (signal.SIGTERM - 1) & 1 and blocked >> (signal.SIGCHLD - 1) & 1
        pipes.close()
        desk.close()


def test_pipes_are_large_where_that_is_allowed(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        pipes = desk.pump.attach(0, 0, 0, "default")
        assert fcntl.fcntl(pipes.stdout_fd, fcntl.F_GETPIPE_SZ) >= 65536
        pipes.close()
        desk.close()


def test_too_few_descriptors_is_a_spawn_error_and_leaks_none(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    made: list[WorkerPipes] = []
    with desk_in(tmp_path) as desk:
        made.append(desk.pump.attach_idle("x"))
        highest = max(map(int, os.listdir("/proc/self/fd")))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
            with pytest.raises(SpawnError, match="Too many open files"):
                for _ in range(highest):
                    made.append(desk.pump.attach_idle("x"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        desk.pump.discard("x")
        for pipes in made:
            pipes.close()
        desk.close()


def test_a_pump_that_was_never_used_closes(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        assert desk.pump.close() and desk.pump.close()


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)


def _peak_kib() -> int:
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]
