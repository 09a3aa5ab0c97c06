"""What docs/security.md promises: secrets stay where they are, others are kept out, ports are where they should be."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.heartbeat.wire import Kind, Message, encode
from support import procfs
from support.etcd import EtcdCluster, etcd
from support.ftctl import Ctl
from support.jobs import Job, Launcher
from support.needs import need_etcd
from support.users import Unprivileged, as_somebody
from support.waiting import wait_until

ETCD, ARGUMENT, URL, PROXY, CHECK, SET = (f"{name}-{uuid.uuid4().hex}" for name in ("e", "a", "u", "p", "c", "s"))
SECRETS = (ETCD, ARGUMENT, URL, PROXY, CHECK, SET)

SCRIPT = """
import os, threading, time
from ftlaunch.heartbeat import beat
os.environ["MY_TOKEN"] = os.environ.pop("FOR_THE_SCRIPT", "")
generation = int(os.environ["FTLAUNCH_GENERATION"])
for step in range(20): beat(step); time.sleep(0.01)
print("up", os.environ["RANK"], "generation", generation, flush=True)
if generation == 0 and os.environ["RANK"] == "0": raise RuntimeError("boom")
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    """A server that lets nobody in without a password."""
    need_etcd()
    with etcd(extra=["--auth-token", "simple", "--bcrypt-cost", "4"]) as cluster:
        ask = cluster.members[0].ask
        ask("auth/user/add", name="root", password=ETCD)
        ask("auth/role/add", name="root")
        ask("auth/user/grant", user="root", role="root")
        ask("auth/enable")
        yield cluster


def leaks(content: bytes, secrets: Sequence[str] = SECRETS) -> list[str]:
    """Which of the secrets stand in it."""
    return [name for name in secrets if name.encode() in content]


def file_leaks(folder: Path) -> dict[str, list[str]]:
    """Secrets in files, by path."""
    found = {str(path): leaks(path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
    return {path: secrets for path, secrets in found.items() if secrets}


def process_leaks(job: Job, what: str, secrets: Sequence[str]) -> dict[str, list[str]]:
    """Secrets in ``cmdline`` or ``environ`` of everything below an agent, by process."""
    found = {}
    for pid in (procfs.descendants([job.pid]) | job.processes()) - ({job.pid} if what == "environ" else set()):
        with contextlib.suppress(OSError):
            if secret := leaks(Path(f"/proc/{pid}/{what}").read_bytes(), secrets):
                found[procfs.describe(pid)] = secret
    return found


def wait_for_standby(ctl: Ctl) -> None:
    """Until one is warm, and so has all that it is ever told."""
    wait_until(lambda: ctl.status()["standby"]["ready"], 60, "a standby is warm")


def test_no_secret_is_left_where_it_does_not_belong(ftlaunch: Launcher, guarded: EtcdCluster, tmp_path: Path) -> None:
    script, log, password = tmp_path / "train.py", tmp_path / "termination-log", tmp_path / "password"
    script.write_text(SCRIPT)
    password.write_text(ETCD + "\n")
    options = ["--rdzv-backend", "etcd", "--rdzv-endpoint", guarded.endpoints, "--rdzv-id", uuid.uuid4().hex[:8]]
    options += ["--nnodes", "2", "--allow-multiple-agents-per-node", "--termination-log", str(log)]
    options += ["--log-level", "DEBUG", "--standby", "on", "--health-check", f"API_TOKEN={CHECK} true"]
    command = [str(script), "--api-key", ARGUMENT, f"--mirror=https://me:{URL}@host/"]
    environment = {"FOR_THE_SCRIPT": SET, "https_proxy": f"http://me:{PROXY}@127.0.0.1:9"}
    by_file = ["--rdzv-conf", f"node_timeout=5,user=root,password_file={password}"]
    by_variable = ["--rdzv-conf", "node_timeout=5"]
    one = ftlaunch(*options, *by_variable, *command, env={**environment, "ETCDCTL_USER": f"root:{ETCD}"})
    other = ftlaunch(
        *options, *by_file, *command, env={**environment, "ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": ETCD}
    )
    for job in (one, other):
        job.wait_for_output("generation 1", 60)
    for job in (one, other):
        ctl = Ctl(job)
        wait_for_standby(ctl)
        assert not process_leaks(job, "cmdline", (ETCD, PROXY, SET))
        assert not process_leaks(job, "environ", (ETCD,))
        for said in (["status"], ["status", "--json"], ["dump"], ["dump", "--json"]):
            assert not leaks(ctl(*said, "--run", ctl.run).encode()), said
    one.signal(15)
    assert one.wait(40) == 143
    other.process.wait(1) if other.process.poll() is not None else other.signal(15)
    other.wait(40)
    for job in (one, other):
        ctl = Ctl(job)
        for said in (["explain", ctl.run], ["explain", ctl.run, "--full"], ["events", ctl.run], ["runs"]):
            assert not leaks(ctl(*said).encode()), said
        assert not leaks(ctl("report", ctl.run, "--text").encode())
        ctl("report", ctl.run)
        assert not file_leaks(job.home)
    assert log.read_text() and not leaks(log.read_bytes())


PY_SPY = """#!/bin/sh
tr '\\0' '\\n' </proc/$$/environ >"$0.environ"
"""
STOPPED = """
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_py_spy_inherits_no_secret(ftlaunch: Launcher, guarded: EtcdCluster, tmp_path: Path) -> None:
    script, program = tmp_path / "train.py", tmp_path / "bin" / "py-spy"
    script.write_text(STOPPED)
    program.parent.mkdir()
    program.write_text(PY_SPY)
    program.chmod(0o755)
    options = ["--rdzv-backend", "etcd", "--rdzv-endpoint", guarded.endpoints, "--rdzv-id", uuid.uuid4().hex[:8]]
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "FOR_THE_SCRIPT": SET}
    credentials = {"ETCDCTL_USER": "root", "ETCDCTL_PASSWORD": ETCD}
    job = ftlaunch(*options, "--max-restarts", "0", "--standby", "off", script, env={**environment, **credentials})
    assert job.wait() != 0
    (failure,) = job.events("failure_detected")
    assert failure["kind"] == "stall"
    inherited = Path(f"{program}.environ").read_bytes()
    assert SET.encode() in inherited, "it gets the rest"
    assert b"ETCDCTL_" not in inherited and not leaks(inherited, (ETCD,))


def test_dry_runs_show_no_secret(ftlaunch: Launcher, guarded: EtcdCluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    options = ["--rdzv-backend", "etcd", "--rdzv-endpoint", guarded.endpoints, "--rdzv-id", "x", "--nnodes", "2"]
    options += ["--health-check", f"API_TOKEN={CHECK} true"]
    command = [str(script), "--api-key", ARGUMENT, f"--mirror=https://me:{URL}@host/"]
    environment = {"ETCDCTL_USER": f"root:{ETCD}", "https_proxy": f"http://me:{PROXY}@127.0.0.1:9"}
    shown = ftlaunch("--print-config", *options, *command, env=environment)
    assert shown.wait() == 0 and "--api-key" in shown.out
    check = Launcher("ftlaunch.launcher.ftctl")
    try:
        for extra in ([], ["--json"], ["--all-settings"]):
            job = check("check", *extra, *options, *command, env=environment)
            assert job.wait() == 0, job.err + job.out
            assert "to connect" in job.out, "etcd let it in"
            assert not leaks((job.out + job.err).encode())
    finally:
        check.close()
    assert not leaks((shown.out + shown.err).encode())


@pytest.mark.parametrize(
    "options",
    [
        ["--rdzv-endpoint", f"https://me:{URL}@h:2379"],
        ["--rdzv-endpoint", f"me:{URL}@h:2379"],
        ["--rdzv-endpoint", "h:2379", "--rdzv-conf", f"password={URL}"],
        ["--rdzv-endpoint", "h:2379", "--rdzv-conf", f"user=me:{URL}"],
        ["--rdzv-endpoint", "h:2379", "--rdzv-conf", f"token={URL}"],
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(
    ftlaunch: Launcher, tmp_path: Path, options: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    job = ftlaunch("--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-id", "x", *options, script)
    assert job.wait() == 2
    assert "everybody" in job.err and job.err.count("\n") == 1 and not leaks((job.err + job.out).encode())


# --- other users ------------------------------------------------------------------------------------------------------

INTRUDER = """
import json, os, socket, sys
run, control, beats, pid, message = sys.argv[1:6]
def attempt(name, act):
    try: found[name] = repr(act())
    except OSError as error: found[name] = type(error).__name__
def connect():
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5); s.connect(control); s.sendall(b'{"command": "stop"}\\n')
        return s.recv(100)
def beat():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        for _ in range(50): s.sendto(bytes.fromhex(message), beats)
        return 50
found = {}
attempt("list", lambda: os.listdir(run))
attempt("read", lambda: open(run + "/events.jsonl").read(10))
attempt("environ", lambda: open(f"/proc/{pid}/environ", "rb").read(10))
attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb").read(10))
attempt("signal", lambda: os.kill(int(pid), 0))
attempt("beat", beat)
attempt("control", connect)
print(json.dumps(found))
"""
HOLD = """
import os, threading
from ftlaunch.heartbeat import beat
beat(1)
print("up", os.environ["FTLAUNCH_SOCKET"], os.getpid(), flush=True)
threading.Event().wait()
"""


class Held:
    """One rank at work, of a user without privileges, below a home that everybody may enter."""

    def __init__(self, ftlaunch: Launcher, owner: Unprivileged) -> None:
        self.owner = owner
        script, self.state = owner.home / "train.py", owner.home / "state"
        script.write_text(HOLD)
        places = {"XDG_STATE_HOME": str(self.state), "XDG_RUNTIME_DIR": "", "TMPDIR": str(owner.home)}
        job = ftlaunch("--standby", "off", script, user=owner, env=places)
        job.wait_for_output("up ")
        _, self.beats, self.pid = job.out.split(" ")[-3:]
        self.events = next(self.state.rglob("events.jsonl"))
        self.run = self.events.parent
        self.control: str = json.loads((self.run / "run.json").read_text())["control"]

    def intrude(self, user: Unprivileged, stop: bool = True) -> dict[str, str]:
        """What a foreign process, which knows all places, gets out of it."""
        message = encode(Message(Kind.BEAT, 0, 0, 1, 0, 77, 0)).hex()
        places = (str(self.run), self.control if stop else "", self.beats, self.pid.strip(), message)
        found: dict[str, str] = json.loads(self._as(user, "-c", INTRUDER, *places))
        return found

    def status(self) -> dict[str, Any]:
        """As its user sees it."""
        told = self._as(self.owner, "-m", "ftlaunch.launcher.ftctl", "status", "--json", "--run", str(self.run))
        shape: dict[str, Any] = json.loads(told)
        return shape

    def has_dropped(self, why: str) -> bool:
        """Whether it is on record that heartbeat messages were dropped."""
        return f" dropped: {why}" in self.events.read_text()

    def _as(self, user: Unprivileged, *arguments: str) -> str:
        argv = user.command(user.python, *arguments)
        environment = {**os.environ, **user.environment, "XDG_STATE_HOME": str(self.state)}
        done = subprocess.run(argv, capture_output=True, timeout=30, cwd="/", env=environment, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def held(ftlaunch: Launcher, unprivileged: Unprivileged) -> Held:
    unprivileged.home.chmod(0o755)
    return Held(ftlaunch, unprivileged)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play two users")
def test_another_user_gets_nothing_and_harms_nothing(held: Held, unprivileged: Unprivileged) -> None:
    somebody = as_somebody(unprivileged)
    refused = held.intrude(somebody)
    assert set(refused.values()) == {"PermissionError"}, refused
    # Somebody opens all doors: the kernel still says who speaks.
    for path in (Path(held.control), Path(held.beats)):
        for place in (path, path.parent):
            place.chmod(0o777)
    opened = held.intrude(somebody)
    assert opened["control"] in ("b''", "ConnectionResetError", "BrokenPipeError"), opened
    assert opened["beat"] == "50", "sent, for what it is worth"
    wait_until(lambda: held.has_dropped("sent by another user"), 20)
    assert {opened[name] for name in ("environ", "memory", "signal")} == {"PermissionError"}
    status = held.status()
    assert status["ending"] is None and status["ranks"][0]["step"] == 1


def test_a_foreign_process_of_the_same_user_cannot_speak_for_a_rank(held: Held, unprivileged: Unprivileged) -> None:
    assert held.intrude(unprivileged, stop=False)["beat"] == "50"
    wait_until(lambda: held.has_dropped("not sent by the rank or a child of it"), 20)
    assert "stopped with ftctl" in held.intrude(unprivileged)["control"], "what its own user asks for is done"


# --- files and ports --------------------------------------------------------------------------------------------------


def test_what_a_job_leaves_is_private_whatever_the_umask(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HOLD)
    job = ftlaunch("--standby", "off", script, prefix=("sh", "-c", 'umask 0; exec "$@"', "sh"))
    job.wait_for_output("up ")
    beats = Path(job.out.split()[1])
    assert job.run_dir is not None
    control = Path(json.loads((job.run_dir / "run.json").read_text())["control"])
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (beats, control)]
    assert modes == [0o600, 0o600]
    for folder in (beats.parent, control.parent, job.run_dir.parent, job.run_dir.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def listening(pid: int) -> set[tuple[str, int]]:
    """Addresses on which a process listens by TCP, as the kernel writes them."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").rstrip("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


@pytest.mark.parametrize(("address", "shown"), [("127.0.0.1", "0100007F"), ("0.0.0.0", "00000000")])
def test_an_agent_of_one_node_listens_only_where_it_was_told_to(
    ftlaunch: Launcher, tmp_path: Path, address: str, shown: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HOLD)
    plain = ftlaunch("--standby", "off", script)
    plain.wait_for_output("up ")
    assert listening(plain.pid) == set()
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [holder.getsockname()[1] for holder in (first, second)]
    wanted = [] if address == "127.0.0.1" else ["--metrics-address", address]
    options = ["--metrics-port", str(ports[0]), "--health-port", str(ports[1]), *wanted]
    job = ftlaunch("--standby", "off", *options, script)
    job.wait_for_output("up ")
    assert listening(job.pid) == {(shown, port) for port in ports}
