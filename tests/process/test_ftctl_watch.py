"""``ftctl status --watch`` on a terminal, with an agent of many ranks that exist only in its answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import control_stand_in, procfs
from support.waiting import wait_until

_ENTER, _LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
_ERASE = re.compile(rb"\x1b\[[0-9]*[JK]")
_ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


@contextlib.contextmanager
def stand_in(home: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """An agent that only answers."""
    root = home / "ftlaunch" / "runs"
    root.mkdir(parents=True)
    argv = [sys.executable, str(control_stand_in.__file__), str(root), str(ranks)]
    agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None and agent.stdout.readline() == b"ready\n"
        yield agent
    finally:
        for stream in (agent.stdin, agent.stdout):
            if stream is not None:
                stream.close()
        agent.wait(10)


class Terminal:
    """ftctl on a terminal of its own."""

    def __init__(
        self,
        home: Path,
        *arguments: str,
        size: tuple[int, int] = (40, 140),
        program: tuple[str, ...] = ("-m", "ftlaunch.launcher.ftctl"),
        **environment: str,
    ) -> None:
        self.seen = b""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        base = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            env={**base, "XDG_STATE_HOME": str(home), "TERM": "xterm-256color", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._fd = ours

    def read(self) -> bytes:
        """What has come so far; returns all of it."""
        with contextlib.suppress(OSError):
            while select.select([self._fd], [], [], 0)[0]:
                data = os.read(self._fd, 1 << 16)
                if not data:
                    break
                self.seen += data
        return self.seen

    def frames(self) -> list[str]:
        """The screens so far, without escape sequences."""
        return [_ESCAPE.sub("", frame.decode("utf-8", "replace")) for frame in self.read().split(b"\x1b[H")[1:]]

    def wait(self, timeout_s: float = 15.0) -> int:
        """Its exit code; keeps reading, so that it is never held up."""
        deadline = time.monotonic() + timeout_s

        def over() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(over, deadline - time.monotonic())
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._fd)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize(("ranks", "size"), [(64, (90, 150)), (64, (24, 80)), (1000, (30, 120))])
def test_it_is_redrawn_in_place_without_ever_erasing(
    tmp_path: Path, terminals: list[Terminal], ranks: int, size: tuple[int, int]
) -> None:
    with stand_in(tmp_path, ranks):
        terminal = Terminal(tmp_path, "status", "--watch", "--interval", "0.1", size=size)
        terminals.append(terminal)
        frames = wait_until(lambda: found if len(found := terminal.frames()) > 4 else None)
    assert terminal.seen.count(_ENTER) == 1
    assert not _ERASE.search(terminal.seen.partition(_ENTER)[2].partition(_LEAVE)[0])
    screen = frames[2].split("\r\n")
    assert len(screen) <= size[0] and max(map(len, screen)) <= size[1]
    text = "\n".join(screen)
    assert "generation 2" in text and "RANK" in text and "limit of step: 30 s" in text
    if ranks == 64 and size[0] > 64:
        assert [line.split()[0] for line in screen if " running" in line][1:] == [str(rank) for rank in range(64)]
    else:
        assert f"-{ranks - 1} ({ranks - 3})" in text and "25 s / 30 s" in text


def test_watching_64_ranks_takes_less_than_2_percent_of_a_cpu(tmp_path: Path, terminals: list[Terminal]) -> None:
    """With a picture each second, as by default; here they come faster."""
    with stand_in(tmp_path, 64):
        terminal = Terminal(tmp_path, "status", "--watch", "--interval", "0.1", size=(90, 150))
        terminals.append(terminal)
        first = wait_until(lambda: found if (found := len(terminal.frames())) > 2 else None)
        before_s = cpu_seconds(terminal.process.pid)
        last = wait_until(lambda: found if (found := len(terminal.frames())) > first + 30 else None)
        spent_s = cpu_seconds(terminal.process.pid) - before_s
    assert spent_s / (last - first) < 0.02


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_terminal_is_as_before_after_a_signal(
    tmp_path: Path, terminals: list[Terminal], signum: int, code: int
) -> None:
    with stand_in(tmp_path, 4):
        terminal = Terminal(tmp_path, "status", "-w", "--interval", "0.1")
        terminals.append(terminal)
        wait_until(lambda: len(terminal.frames()) > 2)
        terminal.process.send_signal(signum)
        assert terminal.wait() == code
    assert terminal.seen.rstrip().endswith(_LEAVE) and b"\x1b[?25h" in terminal.seen
    assert b"Traceback" not in terminal.seen


def test_when_the_agent_is_gone_it_ends_and_says_so(tmp_path: Path, terminals: list[Terminal]) -> None:
    with stand_in(tmp_path, 4) as agent:
        terminal = Terminal(tmp_path, "status", "-w", "--interval", "0.1")
        terminals.append(terminal)
        wait_until(lambda: len(terminal.frames()) > 2)
        assert agent.stdin is not None
        agent.stdin.close()
        agent.wait(10)
        assert terminal.wait() == 0
    rest = terminal.seen.partition(_LEAVE)[2].decode()
    assert "has ended" in rest and "Traceback" not in rest


def test_an_agent_that_pauses_is_watched_on(tmp_path: Path, terminals: list[Terminal]) -> None:
    impatient = "from ftlaunch.launcher.ftctl import status; status._TIMEOUT_S = 0.2\n"
    main = "from ftlaunch.launcher.ftctl.__main__ import main; main()"
    with stand_in(tmp_path, 4) as agent:
        terminal = Terminal(tmp_path, "status", "-w", "--interval", "0.1", program=("-c", impatient + main))
        terminals.append(terminal)
        wait_until(lambda: len(terminal.frames()) > 3)
        agent.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: "trouble: the agent of" in terminal.frames()[-1])
            assert "did not answer within 0.2 s" in terminal.frames()[-1] and "RANK" in terminal.frames()[-1]
        finally:
            agent.send_signal(signal.SIGCONT)
        wait_until(lambda: len(terminal.frames()) > 1 and "trouble" not in terminal.frames()[-2])


def test_once_on_a_terminal_is_coloured_unless_that_is_not_wanted(tmp_path: Path, terminals: list[Terminal]) -> None:
    with stand_in(tmp_path, 12):
        for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            terminal = Terminal(tmp_path, "status", **environment)
            terminals.append(terminal)
            assert terminal.wait() == 0
            text = terminal.read().decode()
            assert "rank 11" in text and ("\x1b[33m" in text) is coloured, environment


def call(home: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(home)}
    argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", *arguments]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=20)


def test_in_a_pipe_every_rank_has_a_plain_row(tmp_path: Path) -> None:
    with stand_in(tmp_path, 1000):
        plain = call(tmp_path, "status")
        shape = json.loads(call(tmp_path, "status", "--json").stdout)
    rows = [line for line in plain.stdout.splitlines() if " running" in line][1:]
    assert len(rows) == 1000 and "\x1b" not in plain.stdout
    assert len(shape["ranks"]) == 1000 and shape["ranks"][7]["silence_s"] == 25.0


def test_watching_into_a_pipe_that_closes_ends_silently(tmp_path: Path) -> None:
    with stand_in(tmp_path, 64):
        for mode in ((), ("--json",)):
            environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
            argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "status", "-w", "--interval", "0.1", *mode]
            with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                assert process.stdout is not None and process.stderr is not None
                assert process.stdout.readline().strip()
                process.stdout.close()
                assert process.wait(10) == -signal.SIGPIPE
                assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("status", "--interval", "0"), "0.1<=x<=3600"),
        (("status", "--interval", "x"), "'x' is not a valid float"),
        (("status", "a", "stray"), "unexpected extra argument"),
        (("restart", "--nonsense"), "No such option"),
        (("dump", "--rank", "x"), "not a valid integer"),
        (("exclude",), "Missing argument 'NODE'"),
        (("logs", "--tail", "-1"), "x>=0"),
        (("explain", "--last", "0"), "x>=1"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    done = call(tmp_path, *arguments)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and text in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "dump", "restart", "stop"])
def test_a_run_that_is_not_there_is_code_1(tmp_path: Path, command: str) -> None:
    done = call(tmp_path, command, "--run", "20990101-nothing")
    assert done.returncode == 1 and done.stderr == "error: no run begins with '20990101-nothing'; see ftctl runs\n"


def test_an_agent_that_is_stopped_costs_a_line_and_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ftlaunch.launcher.ftctl.__main__ import run as run_ftctl

    with stand_in(tmp_path, 2) as agent:
        agent.send_signal(signal.SIGSTOP)
        try:
            (run,) = (tmp_path / "ftlaunch" / "runs").glob("*-stand-in-*")
            wait_until(lambda: procfs.state(agent.pid) == "T")
            assert run_ftctl(["status", "--run", str(run)]) == 1
        finally:
            agent.send_signal(signal.SIGCONT)
    said = capsys.readouterr().err
    assert "is stopped, and answers nobody" in said and f"kill -CONT {agent.pid} lets it go on" in said


def test_a_run_of_another_host_says_where_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ftlaunch.launcher.ftctl.__main__ import run as run_ftctl

    facts = {"id": "x", "host": "node-z", "pid": 1, "boot_id": "other", "pid_namespace": "other", "control": "/x"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert run_ftctl(["status", "--run", str(tmp_path)]) == 1
    assert "belongs to host node-z: ask there" in capsys.readouterr().err
