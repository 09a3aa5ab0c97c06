"""Two hosts and a cable that is pulled: who is cut off has stopped before the others write anything.

The hosts are network namespaces of this test, the cable is a veth pair; etcd is on the first host. Two rounds here;
PARTITION_ROUNDS=50 ./scripts/test tests/process/test_job_partition.py is the long run (about eight minutes).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import etcd_server
import pytest

from support.jobs import Job, Launcher
from support.waiting import wait_until

ROUNDS = int(os.environ.get("PARTITION_ROUNDS", "2"))
NODE_TIMEOUT_S = 3
BODY = """
import os, sys, time
name, generation = sys.argv[1], os.environ["FTLAUNCH_GENERATION"]
with open(name + "." + generation + "." + os.environ["GROUP_RANK"] + "." + os.environ["WORLD_SIZE"], "a") as log:
    while not os.path.exists(sys.argv[2]):
        log.write(f"{time.monotonic()}\\n")
        log.flush()
        time.sleep(0.005)
"""

pytestmark = [
    pytest.mark.timeout(120 + 20 * ROUNDS),
    pytest.mark.skipif(
        os.getuid() != 0 or shutil.which("ip") is None or etcd_server.find_binary() is None,
        reason="needs root, ip (iproute2) and etcd",
    ),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """Two namespaces, ``a`` and ``b``, with one cable between them."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:6]
        self.names = {"a": f"ft{mark}a", "b": f"ft{mark}b"}
        self.addresses = {"a": "10.231.77.1", "b": "10.231.77.2"}

    def build(self) -> None:
        for name in self.names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names["a"], "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", self.names["b"])
        for host, name in self.names.items():
            ip("-n", name, "address", "add", f"{self.addresses[host]}/30", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def cable(self, state: str) -> None:
        """Pull (``down``) or plug (``up``) it, at the end of ``b``."""
        ip("-n", self.names["b"], "link", "set", "eth0", state)

    def remove(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False)

    def on(self, host: str, *command: str) -> list[str]:
        """The command line that runs there."""
        return ["ip", "netns", "exec", self.names[host], *command]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    try:
        hosts.build()
        yield hosts
    finally:
        hosts.remove()


@pytest.fixture
def endpoint(hosts: Hosts, tmp_path: Path) -> Iterator[str]:
    url, peers = f"http://{hosts.addresses['a']}:2379", "http://127.0.0.1:2380"
    binary = etcd_server.find_binary()
    assert binary is not None
    options = ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers]
    options += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", "--unsafe-no-fsync"]
    with open(tmp_path / "etcd.log", "wb") as log:
        server = subprocess.Popen(
            hosts.on("a", binary, "--data-dir", str(tmp_path / "etcd"), *options), stdout=log, stderr=log
        )
    try:
        wait_until(lambda: b"ready to serve client requests" in (tmp_path / "etcd.log").read_bytes(), 20)
        yield f"{hosts.addresses['a']}:2379"
    finally:
        server.kill()
        server.wait()


def beats(folder: Path) -> dict[int, dict[str, tuple[float, float]]]:
    """generation -> host -> when its rank first and last wrote."""
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for path in folder.glob("log-?.*"):
        lines = path.read_text().split("\n")[:-1]
        if lines:
            host, generation = path.name[4], int(path.name.split(".")[1])
            found.setdefault(generation, {})[host] = (float(lines[0]), float(lines[-1]))
    return found


def test_who_is_cut_off_has_stopped_before_the_others_go_on(
    ftlaunch: Launcher, hosts: Hosts, endpoint: str, tmp_path: Path
) -> None:
    script, end = tmp_path / "train.py", tmp_path / "end"
    script.write_text(BODY)
    dice = random.Random(20261129)
    conf = f"node_timeout={NODE_TIMEOUT_S},last_call_timeout=1,call_timeout=1"

    def start(host: str) -> Job:
        return ftlaunch(
            *("--allow-multiple-agents-per-node", "--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint),
            *("--rdzv-id", "cable", "--rdzv-conf", conf, "--nnodes", "1:2", script, tmp_path / f"log-{host}", end),
            prefix=hosts.on(host),
        )

    agents = {host: start(host) for host in "ab"}

    for number in range(ROUNDS):
        both = wait_for_both(tmp_path, number)
        let_run(tmp_path, dice.random())
        hosts.cable("down")
        wait_for_one(tmp_path, both)
        hosts.cable("up")
    wait_for_both(tmp_path, ROUNDS)
    end.touch()
    assert {host: agent.wait(60) for host, agent in agents.items()} == {"a": 0, "b": 0}
    found = beats(tmp_path)
    for generation in sorted(found):
        later = [first for g, hosts_ in found.items() if g > generation for first, _ in hosts_.values()]
        last = max(last for _, last in found[generation].values())
        assert not later or last < min(later), f"generation {generation} wrote after the next had begun"


def wait_for_both(folder: Path, rounds: int) -> int:
    """Until both hosts have run together once more than ``rounds`` times; returns that generation."""

    def together() -> list[int]:
        return [generation for generation, found in beats(folder).items() if len(found) == 2]

    wait_until(lambda: len(together()) > rounds, 60, f"both hosts run, round {rounds}")
    return max(together())


def wait_for_one(folder: Path, before: int) -> None:
    """Until the first host runs in a later generation."""

    def goes_on() -> bool:
        return any(generation > before and "a" in found for generation, found in beats(folder).items())

    wait_until(goes_on, 30, "the host with etcd goes on alone")


def let_run(folder: Path, seconds: float) -> None:
    """Until the newest rank has written for so long."""

    def written() -> bool:
        newest = max(beats(folder).items())[1]
        return all(last - first >= seconds for first, last in newest.values())

    wait_until(written, 30)
