"""The processes of a whole drill on this machine: agents, an etcd of its own, ways to it. Nothing of them stays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ftlaunch.launcher import clock
from ftlaunch.launcher.drill.plan import PlanError
from ftlaunch.launcher.drill.tail import Tail
from ftlaunch.launcher.errors import FtlaunchError
from ftlaunch.launcher.host import proctree
from ftlaunch.launcher.processes import guardian

MARK = "FTLAUNCH_DRILL_LIFE"
"""In the environment of everything that one life of one agent starts."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_START_S = 20.0
_LAST_BYTES = 4096
_PAUSE_S = 0.02


class MachineryError(FtlaunchError):
    """Something that the drill needs for itself does not run. Caught in ``main``."""


class Child:
    """A process that the drill has started. It does not outlive the drill, however that ends."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], output: Path | int) -> None:
        self.began_at = clock.monotonic()
        opened = isinstance(output, Path)
        stdout = os.open(output, _LOG_FLAGS, 0o600) if isinstance(output, Path) else output
        try:
            self.process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout if opened else subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),
            )
        except OSError as error:
            raise MachineryError(f"cannot start {argv[0]}: {error.strerror}") from None
        finally:
            if opened:
                os.close(stdout)
        self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def pid(self) -> int:
        """Its process id, until :meth:`close`."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def send(self, signum: int) -> None:
        """Signal it alone; harmless when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signum)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within the time."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill it if it still runs, and reap it."""
        self.send(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _die_with_parent(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


class Agent(Child):
    """One life of the agent of one node."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, node: int) -> None:
        self.node = node
        self.folder = folder
        self.mark = environment[MARK]
        self.tail = Tail(folder)
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(argv, environment, folder / "output.log")

    def last_line(self) -> str:
        """The last thing that it or its ranks said."""
        try:
            with open(self.folder / "output.log", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


# -- etcd -----------------------------------------------------------------------------------------------------------


def find_etcd() -> str:
    """An etcd server's binary: ETCD_BINARY, else ``etcd`` on PATH. Raises :class:`PlanError` when there is none."""
    found = os.environ.get("ETCD_BINARY") or shutil.which("etcd")
    if not found:
        raise PlanError("a drill of several nodes needs an etcd binary: install etcd, or name it with ETCD_BINARY")
    return found


class Etcd:
    """A single server of the drill's own, on free ports of loopback."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.port, peer_port = _free_ports(2)
        folder.mkdir(parents=True, exist_ok=True)
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer_port}"
        argv = [binary, "--name", "drill", "--data-dir", str(folder / "data")]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--initial-cluster", f"drill={peer}", "--heartbeat-interval", "50", "--election-timeout", "500"]
        self.child = Child(argv, os.environ, folder / "etcd.log")

    def wait_until_ready(self) -> None:
        """Return when it serves. Raises :class:`MachineryError` when it does not within 20 s."""
        wait_for(self._is_ready, _START_S, "the drill's own etcd does not answer")

    def _is_ready(self) -> bool:
        import urllib.error
        import urllib.request

        if not self.child.alive:
            raise MachineryError("the drill's own etcd ended at once: see etcd.log, with --out DIRECTORY")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1.0) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False


class Link:
    """A node's way to etcd that can be stopped."""

    def __init__(self, target: int) -> None:
        argv = [sys.executable, "-m", "ftlaunch.launcher.drill.link", str(target)]
        self.child = Child(argv, os.environ, subprocess.PIPE)
        stdout = self.child.process.stdout
        line = stdout.readline() if stdout is not None else b""
        if not line.strip().isdigit():
            raise MachineryError("a node's way to etcd could not be made")
        self.port = int(line)


def _free_ports(count: int) -> list[int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


# -- what is left -----------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], timeout_s: float, problem: str = "") -> bool:
    """Whether the condition came true within the time; with ``problem``, raises :class:`MachineryError` when not.

    For what no event tells of: processes that are not our children.
    """
    import threading

    deadline = clock.monotonic() + timeout_s
    never = threading.Event()
    while not condition():
        if clock.monotonic() >= deadline:
            if problem:
                raise MachineryError(f"{problem} within {timeout_s:g} s")
            return False
        never.wait(_PAUSE_S)
    return True


def left_over(marks: Collection[str], own: Collection[int]) -> list[proctree.ProcessEntry]:
    """What still lives of these lives: by the mark in its environment, or because we have inherited it as a subreaper.

    ``own``: pids of the drill's own children. Those that are dead and inherited are reaped.
    """
    table = proctree.read_table()
    inherited = proctree.descendants(table, os.getpid(), without=own)
    for entry in inherited:
        if entry.state == "Z" and entry.ppid == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(entry.pid, os.WNOHANG)
    found = {entry.pid: entry for entry in inherited}
    found.update({entry.pid: entry for entry in table if entry.pid not in own and carries(entry.pid, marks)})
    return [entry for entry in found.values() if entry.state not in "ZX"]


def carries(pid: int, marks: Collection[str]) -> bool:
    """Whether one of the marks is in the environment that the process was started with."""
    return any(guardian.carries(pid, mark, MARK) for mark in marks)
