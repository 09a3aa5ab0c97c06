"""Several hosts on one machine: network namespaces with a cable each to one switch, at which etcd is.

Only the network is apart: files, processes and the clock are the machine's. Needs root, ``ip`` (iproute2) and etcd.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from support.etcd import find_binary
from support.waiting import wait_until

INTERFACE = "eth0"
_NETWORK = "10.231.77"
_SWITCH = "switch"
_OWN_ETC = Path("/etc/netns")
"""What lies below it by the name of a namespace takes the place of files in /etc there (ip-netns(8))."""


def missing() -> str:
    """Return what hosts would need and this machine does not have, in a few words; empty when all is there."""
    if os.getuid() != 0:
        return "needs root for network namespaces"
    if shutil.which("ip") is None:
        return "needs ip (iproute2)"
    if find_binary() is None:
        return "needs etcd"
    done = subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL)
    return "" if done.returncode == 0 else "needs network namespaces, which are not allowed here"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """Hosts by name; a context manager that takes them all away again. What runs on them is to be ended before."""

    def __init__(self, *names: str) -> None:
        mark = uuid.uuid4().hex[:6]
        self._spaces = {name: f"ft{mark}{name}" for name in (_SWITCH, *names)}
        self._addresses = {name: f"{_NETWORK}.{number}" for number, name in enumerate((_SWITCH, *names), 1)}

    def __enter__(self) -> Hosts:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *ignored: object) -> None:
        for space in self._spaces.values():
            subprocess.run(["ip", "netns", "delete", space], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(_OWN_ETC / space, ignore_errors=True)
        with contextlib.suppress(OSError):
            _OWN_ETC.rmdir()

    def address(self, host: str) -> str:
        """Return a host's address."""
        return self._addresses[host]

    def cable(self, host: str, state: str) -> None:
        """Pull a host's cable (``down``) or plug it in again (``up``)."""
        _ip("-n", self._spaces[host], "link", "set", INTERFACE, state)

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command line that runs on a host."""
        return ["ip", "netns", "exec", self._spaces[host], *command]

    @contextlib.contextmanager
    def etcd(self, folder: Path) -> Iterator[str]:
        """Run a real etcd with one member at the switch; gives its ``host:port``. ``folder`` keeps its data."""
        endpoint, peers = f"{self._addresses[_SWITCH]}:2379", "http://127.0.0.1:2380"
        binary = find_binary()
        assert binary is not None
        options = ["--listen-client-urls", f"http://{endpoint}", "--advertise-client-urls", f"http://{endpoint}"]
        options += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        options += ["--initial-cluster", f"default={peers}", "--data-dir", str(folder / "etcd")]
        with open(folder / "etcd.log", "wb") as log:
            server = subprocess.Popen(self.on(_SWITCH, binary, *options), stdout=log, stderr=log)
        try:
            wait_until(lambda: b"ready to serve client requests" in (folder / "etcd.log").read_bytes(), 20, "etcd")
            yield endpoint
        finally:
            server.kill()
            server.wait()

    def _build(self) -> None:
        switch = self._spaces[_SWITCH]
        names = "".join(f"{address} {name}\n" for name, address in self._addresses.items())
        for name, space in self._spaces.items():
            # They know each other by name: torch looks up who connects, and would wait for a name server.
            own = f"127.0.0.1 localhost\n::1 localhost\n{self._addresses[name]} {os.uname().nodename}\n"
            (_OWN_ETC / space).mkdir(parents=True)
            (_OWN_ETC / space / "hosts").write_text(own + names)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", INTERFACE, "type", "bridge")
        for name, space in self._spaces.items():
            if name != _SWITCH:
                _ip("-n", switch, "link", "add", f"to-{name}", "type", "veth", "peer", INTERFACE, "netns", space)
                _ip("-n", switch, "link", "set", f"to-{name}", "master", INTERFACE, "up")
            _ip("-n", space, "address", "add", f"{self._addresses[name]}/24", "dev", INTERFACE)
            _ip("-n", space, "link", "set", INTERFACE, "up")
