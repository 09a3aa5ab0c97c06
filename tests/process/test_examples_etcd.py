"""The etcd of the manifests, started here as it stands there, and two agents that meet at it as the manifests say."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.etcd import find_binary
from support.jobs import Launcher
from support.manifests import KUBERNETES, SCRIPT, documents, trainers
from support.needs import needs_etcd
from support.scripts import BEATING, HEAD
from support.waiting import wait_until

pytestmark = [
    needs_etcd,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]
MEMBERS = 3
FAILS_ONCE = """
steps(1, 40)
if RANK == 1 and GEN == 0: os._exit(3)
steps(40, 60)
say("done in", GEN)
"""


class Place:
    """Where names and ports of the manifests are here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in range(3 * MEMBERS)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in sockets]
        self._ports = {(index, 2379 + kind): ports[3 * index + kind] for index in range(MEMBERS) for kind in range(3)}

    def port(self, member: int, number: int) -> int:
        return self._ports[member, number]

    def translate(self, word: str, member: int = 0) -> str:
        word = word.replace("$(POD_NAME)", f"etcd-{member}")
        word = re.sub(r"etcd-(\d)\.etcd:(\d+)", lambda m: f"127.0.0.1:{self.port(int(m[1]), int(m[2]))}", word)
        word = re.sub(r"0\.0\.0\.0:(\d+)", lambda m: f"127.0.0.1:{self.port(member, int(m[1]))}", word)
        return word.replace("/data/", f"{self.folder}/data-{member}/")

    def with_secret(self, words: list[str], secret: str, member: int = 0) -> list[str]:
        """A command line whose /etc/etcd is this secret."""
        return [self.translate(word, member).replace("/etc/etcd", str(self.folder / secret)) for word in words]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Three members, of which one is already gone again."""
    tmp_path = tmp_path_factory.mktemp("etcd")
    made = subprocess.run([KUBERNETES / "certificates", tmp_path], capture_output=True, timeout=60)
    assert made.returncode == 0, made.stderr
    for name in ("etcd-server", "etcd-client"):
        # As the secrets are made.
        shutil.copy(tmp_path / "ca.crt", tmp_path / name)
    place = Place(tmp_path)
    (etcd,) = [document for document in documents(KUBERNETES / "etcd.yaml") if document["kind"] == "StatefulSet"]
    (container,) = etcd["spec"]["template"]["spec"]["containers"]
    members = []
    try:
        for member in range(MEMBERS):
            words = place.with_secret(container["command"][1:], "etcd-server", member)
            with open(tmp_path / f"etcd-{member}.log", "wb") as log:
                members.append(subprocess.Popen([str(find_binary()), *words], stdout=log, stderr=log))
        probe = container["readinessProbe"]["httpGet"]
        urls = [f"http://127.0.0.1:{place.port(member, probe['port'])}{probe['path']}" for member in range(MEMBERS)]
        wait_until(lambda: all(map(healthy, urls)), 30, "all members to be ready")
        members[1].kill()
        members[1].wait(10)
        wait_until(lambda: healthy(urls[0]) and healthy(urls[2]), 30, "the others to go on")
        yield place
    finally:
        for process in members:
            process.kill()
            process.wait(10)


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return b'"true"' in answer.read()
    except (OSError, urllib.error.URLError):
        return False


def test_agents_meet_at_the_etcd_of_the_manifests_with_one_member_gone(ftlaunch: Launcher, place: Place) -> None:
    trainer = trainers()[0]
    options = place.with_secret([word for word in trainer.argv if word.startswith("--rdzv-")], "etcd-client")
    script = place.folder / SCRIPT
    script.write_text(HEAD + BEATING + FAILS_ONCE)
    here = ("--nnodes=2", "--local-addr=127.0.0.1", "--allow-multiple-agents-per-node", "--standby=off")
    jobs = [ftlaunch(*options, *here, script) for _ in range(2)]
    assert [job.wait(90) for job in jobs] == [0, 0], [job.err[-2000:] for job in jobs]
    assert all("done in 1" in job.out for job in jobs)


def test_without_the_certificate_nobody_gets_in(ftlaunch: Launcher, place: Place) -> None:
    script = place.folder / SCRIPT
    script.write_text(HEAD)
    endpoint = place.translate("https://etcd-0.etcd:2379")
    conf = f"cacert={place.folder / 'ca.crt'},connect_timeout=1"
    job = ftlaunch(
        *("--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint}", "--rdzv-id=x", f"--rdzv-conf={conf}"),
        script,
    )
    assert job.wait(60) == 69, job.err
