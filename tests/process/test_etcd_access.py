"""Who may talk to etcd: certificates, passwords, expiring tokens, and servers that are no etcd: one line for each."""

from __future__ import annotations

import asyncio
import http.server
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ftlaunch.rendezvous.etcd import EtcdSettings
from ftlaunch.rendezvous.etcd.settings import Credentials, Tls, parse_endpoints
from ftlaunch.rendezvous.interface import JoinFailed, Outcome, PeerFailed, SettingsError, WorldAgreed
from support.agents import Agent, agents, world_of
from support.etcd import Certificates, EtcdCluster, etcd, make_certificates
from support.needs import needs_etcd

pytestmark = needs_etcd
_jobs = count()
_TOKEN_S = 2


def alone(endpoints: str, **change: object) -> EtcdSettings:
    """A job of one node that soon gives up."""
    settings = EtcdSettings(parse_endpoints(endpoints)[0], f"job-{next(_jobs)}", connect_timeout_s=2.0)
    return replace(settings, **change)  # type: ignore[arg-type]


def world_at(settings: EtcdSettings) -> str:
    """The master address of a world of one, or why there is none."""

    async def scenario() -> str:
        async with agents(settings, "a") as (a,):
            a.start()
            return await answer_of(a)

    return asyncio.run(scenario())


async def answer_of(agent: Agent) -> str:
    while not agent.heard:
        await asyncio.sleep(0.01)
    event = agent.heard[0]
    assert isinstance(event, (WorldAgreed, JoinFailed)), event
    return event.world.master_addr if isinstance(event, WorldAgreed) else event.reason


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[EtcdCluster]:
    extra = ["--cert-file", certificates.cert, "--key-file", certificates.key]
    extra += ["--trusted-ca-file", certificates.ca, "--client-cert-auth"]
    with etcd(extra=extra, tls=True) as cluster:
        yield cluster


def test_a_client_with_the_right_certificate_is_let_in(secure: EtcdCluster, certificates: Certificates) -> None:
    tls = Tls(certificates.ca, certificates.cert, certificates.key)
    assert world_at(alone(secure.endpoints, tls=tls)) == "127.0.0.1"


def test_a_server_of_another_authority_is_not_trusted(secure: EtcdCluster, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    assert "not signed by the given authority" in world_at(
        alone(secure.endpoints, tls=Tls(other.ca, other.cert, other.key))
    )


def test_without_a_client_certificate_or_tls_the_server_does_not_answer(
    secure: EtcdCluster, certificates: Certificates
) -> None:
    for tls in (Tls(certificates.ca), None):
        reason = world_at(alone(secure.endpoints, tls=tls))
        assert reason.startswith("etcd was not reached for 2 s: ")
        assert secure.endpoints in reason


def test_a_missing_certificate_is_found_before_the_first_connection(secure: EtcdCluster) -> None:
    async def scenario() -> None:
        async with agents(alone(secure.endpoints, tls=Tls("/does/not/exist.pem")), "a") as (a,):
            with pytest.raises(SettingsError, match=r"cacert file /does/not/exist\.pem: No such file"):
                a.start()

    asyncio.run(scenario())


def test_certificates_are_read_again_when_a_connection_is_made_anew(tmp_path: Path) -> None:
    old, new = make_certificates(tmp_path, "old"), make_certificates(tmp_path, "new")
    both, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"

    def use(certificates: Certificates) -> None:
        both.write_text(Path(certificates.ca).read_text())
        cert.write_text(Path(certificates.cert).read_text())
        key.write_text(Path(certificates.key).read_text())

    use(old)
    extra = ["--cert-file", str(cert), "--key-file", str(key), "--trusted-ca-file", str(both), "--client-cert-auth"]
    with etcd(extra=extra, tls=True) as cluster:

        async def scenario() -> None:
            job = alone(cluster.endpoints, tls=Tls(str(both), str(cert), str(key)), node_timeout_s=20.0)
            async with agents(job, "a") as (a,):
                a.start()
                await world_of(0, a)
                use(new)
                cluster.stop()
                cluster.start()
                a.fail(0)
                await world_of(1, a)

        asyncio.run(scenario())


# --- users ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    """A server with users: root may do everything, ``ml`` may use /ftlaunch/, ``guest`` nothing."""
    with etcd(extra=["--auth-token", "simple", "--auth-token-ttl", str(_TOKEN_S)]) as cluster:
        ask = cluster.members[0].ask
        for user in ("root", "ml", "guest"):
            ask("auth/user/add", name=user, password=f"{user}-password")
        ask("auth/role/add", name="root")
        ask("auth/role/add", name="ml")
        # "/ftlaunch/" up to "/ftlaunch0", in base 64.
        allowed = {"permType": "READWRITE", "key": "L2Z0bGF1bmNoLw==", "range_end": "L2Z0bGF1bmNoMA=="}
        ask("auth/role/grant", name="ml", perm=allowed)
        ask("auth/user/grant", user="root", role="root")
        ask("auth/user/grant", user="ml", role="ml")
        ask("auth/enable")
        yield cluster


def test_tokens_that_expire_and_servers_that_forget_them_do_no_harm(guarded: EtcdCluster) -> None:
    async def scenario() -> None:
        credentials = Credentials("ml", "ml-password")
        job = alone(guarded.endpoints, credentials=credentials, min_nodes=2, max_nodes=2, node_timeout_s=10.0)
        async with agents(job, "a", "b") as (a, b):
            a.start()
            b.start()
            await world_of(0, a, b)
            await asyncio.sleep(2.0 * _TOKEN_S)
            assert not a.heard + b.heard
            for generation in range(2):
                a.fail(generation)
                await b.hear(PeerFailed, generation)
                b.join(generation + 1)
                await world_of(generation + 1, a, b)
            assert await asyncio.gather(a.finish(2), b.finish(2)) == [0, 0]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("credentials", "text"),
    [
        (None, "asks for a user and a password"),
        (Credentials("ml", "wrong"), "invalid user ID or password"),
        (Credentials("guest", "guest-password"), "denies access"),
    ],
)
def test_wrong_credentials_end_at_once_in_one_line(
    guarded: EtcdCluster, credentials: Credentials | None, text: str
) -> None:
    reason = world_at(alone(guarded.endpoints, credentials=credentials, connect_timeout_s=60.0))
    assert text in reason
    assert "\n" not in reason
    assert "-password" not in reason


# --- not an etcd ------------------------------------------------------------------------------------------------------


def test_a_web_server_is_not_an_etcd() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            reason = world_at(alone(f"127.0.0.1:{web.server_port}"))
        finally:
            web.shutdown()
            thread.join()
    assert f"127.0.0.1:{web.server_port} cannot be reached: what answers there is not an etcd v3 endpoint" in reason


def test_a_closed_port_is_named_when_the_patience_ends() -> None:
    reason = world_at(alone("127.0.0.1:9", connect_timeout_s=0.5))
    assert reason.startswith(
        "etcd was not reached for 0.5 s: etcd at 127.0.0.1:9 cannot be reached: Connection refused"
    )


def test_closing_takes_a_few_seconds_at_most_whatever_the_server_does() -> None:
    with etcd() as cluster:

        async def scenario() -> None:
            async with agents(alone(cluster.endpoints, node_timeout_s=60.0), "a") as (a,):
                a.start()
                await world_of(0, a)
                cluster.send(signal.SIGSTOP)
                loop = asyncio.get_running_loop()
                begin = loop.time()
                await a.finish(0, Outcome.LEFT, 143, limit_s=1.0)
                await a.rendezvous.close()
                assert loop.time() - begin < 8.0
                a.started = False

        asyncio.run(scenario())
