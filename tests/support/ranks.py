"""Start ranks the way an agent does, and hear what they say, without an agent."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ftlaunch.heartbeat
from ftlaunch.heartbeat import wire
from ftlaunch.heartbeat.standbys import frames

BOOTSTRAP = str(Path(str(ftlaunch.heartbeat.__file__)).with_name("bootstrap.py"))
_LIMIT_S = 100.0


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    code: int
    out: str
    err: str


def plain_environment(**more: str) -> dict[str, str]:
    """This process's environment without what a launcher would have set."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("FTLAUNCH_", "PYTEST_"))}
    if "FTLAUNCH_TEST_SESSION" in os.environ:
        own["FTLAUNCH_TEST_SESSION"] = os.environ["FTLAUNCH_TEST_SESSION"]
    return {**own, **more}


def run_plain(command: Sequence[str], cwd: Path | None = None, **more: str) -> Finished:
    """``python -u COMMAND``: what a rank is compared with."""
    done = subprocess.run(
        [sys.executable, "-u", *command],
        cwd=cwd,
        env=plain_environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LIMIT_S,
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


@dataclass
class Agent:
    """The agent's end: a heartbeat socket, a death pipe, and the processes it has started."""

    receiver: socket.socket
    address: str
    death_write: int
    death_read: int
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    interpreter_args: tuple[str, ...] = ("-u",)
    heard: list[tuple[wire.Message, int]] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        """What a rank gets."""
        given = {
            "FTLAUNCH_SOCKET": self.address,
            "FTLAUNCH_GENERATION": "3",
            "FTLAUNCH_RUN_ID": "run",
            "FTLAUNCH_MARK": "mark",
            "LOCAL_RANK": "0",
            "RANK": "0",
        }
        return plain_environment(**{**given, **more})

    def start(self, *arguments: str, cwd: Path | None = None, pass_fds: tuple[int, ...] = (), **more: str) -> Any:
        """Start ``bootstrap.py ARGUMENTS``."""
        ties = {"FTLAUNCH_DEATH_FD": str(self.death_read), "FTLAUNCH_AGENT_PID": str(os.getpid())}
        child = subprocess.Popen(
            [sys.executable, *self.interpreter_args, BOOTSTRAP, *arguments],
            cwd=cwd,
            env=self.environment(**{**ties, **more}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(self.death_read, *pass_fds),
            start_new_session=True,
        )
        self.children.append(child)
        return child

    def run(self, *arguments: str, cwd: Path | None = None, deaf: bool = False, **more: str) -> Finished:
        """Start and wait for the end, listening meanwhile unless ``deaf``."""
        child = self.start(*arguments, cwd=cwd, **more)
        if not deaf:
            self.listen(child)
        return finish(child)

    def listen(self, child: subprocess.Popen[bytes]) -> None:
        """Keep what is said until the child has ended."""
        pidfd = os.pidfd_open(child.pid)
        deadline = time.monotonic() + _LIMIT_S
        try:
            while pidfd not in select.select([self.receiver, pidfd], [], [], _LIMIT_S)[0]:
                assert time.monotonic() < deadline, "still running"
                self._hear()
        finally:
            os.close(pidfd)

    def receive(self, limit_s: float = 0.0) -> list[wire.Message]:
        """Everything that is there; waits for the first message at most ``limit_s``."""
        return [message for message, _ in self.receive_with_pid(limit_s)]

    def receive_with_pid(self, limit_s: float = 0.0) -> list[tuple[wire.Message, int]]:
        """As :meth:`receive`, with the pid that the kernel vouches for."""
        if not self.heard:
            select.select([self.receiver], [], [], limit_s)
        self._hear()
        found, self.heard = self.heard, []
        return found

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, control, _, _ = self.receiver.recvmsg(wire.MAX_BYTES + 1, socket.CMSG_SPACE(12))
                pid = int.from_bytes(control[0][2][:4], sys.byteorder) if control else 0
                self.heard.append((wire.decode(data), pid))

    def receive_until(self, wanted: Callable[[wire.Message], bool]) -> list[wire.Message]:
        """Receive until a message is the wanted one; returns all, the wanted one last or among the last."""
        found: list[wire.Message] = []
        deadline = time.monotonic() + _LIMIT_S
        while not any(wanted(message) for message in found):
            left = deadline - time.monotonic()
            assert left > 0, f"not among {found}"
            found += self.receive(left)
        return found

    def close(self) -> None:
        """End everything; a child that still runs is killed."""
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    stream.close()
        self.receiver.close()
        for fd in (self.death_write, self.death_read):
            with contextlib.suppress(OSError):
                os.close(fd)


def finish(child: subprocess.Popen[bytes]) -> Finished:
    """Wait for the end of a child and return all it said."""
    out, err = child.communicate(timeout=_LIMIT_S)
    return Finished(child.returncode, out.decode(), err.decode())


@contextlib.contextmanager
def agent() -> Iterator[Agent]:
    """A listening agent."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    receiver.setblocking(False)
    name = f"ft-test-{uuid.uuid4().hex}"
    receiver.bind(f"\0{name}")
    death_read, death_write = os.pipe()
    made = Agent(receiver, f"@{name}", death_write, death_read)
    try:
        yield made
    finally:
        made.close()


class Standby:
    """A standby worker and the connection to it."""

    def __init__(self, owner: Agent, **more: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self.process = owner.start("--standby", pass_fds=(fd,), FTLAUNCH_STANDBY_FD=str(fd), **more)
        self._connection = ours
        self._reader = frames.FrameReader()
        self._owner = owner

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one frame."""
        self._connection.sendall(frames.encode(message))

    def answer(self) -> dict[str, Any] | None:
        """The next frame; None at end of file."""
        self._connection.settimeout(_LIMIT_S)
        while True:
            data = self._connection.recv(1 << 16)
            if not data:
                return None
            for message in self._reader.feed(data):
                return message

    def preload(self, *names: str, **more: Any) -> dict[str, Any]:
        """Have modules imported; returns the report."""
        self.send({"preload": names, **more})
        report = self.answer()
        assert report is not None
        return report

    def go(self, *arguments: str, cwd: Path | None = None, **more: str) -> None:
        """Release it as the agent does, which says nothing more: ``arguments`` as for :meth:`Agent.start`."""
        kind, target, *rest = arguments
        environment = self._owner.environment(**more)
        order = {"kind": kind, "target": target, "args": rest, "environment": environment}
        self.send({"go": {**order, "cwd": str(cwd or Path.cwd())}})
        self.close()

    def close(self) -> None:
        """Close our end."""
        self._connection.close()


@contextlib.contextmanager
def standby(owner: Agent, **more: str) -> Iterator[Standby]:
    """A standby whose connection is closed at the end."""
    made = Standby(owner, **more)
    try:
        yield made
    finally:
        made.close()
