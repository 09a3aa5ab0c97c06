"""Whether what the job wants of the network is there: meeting points and ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

from ftlaunch.launcher import clock
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.ftctl._finding import Finding, error, note, ok, warning
from ftlaunch.launcher.wording import seconds
from ftlaunch.rendezvous import ports
from ftlaunch.rendezvous.interface import RendezvousError

_CONNECT_S = 3.0
_CALL_S = 5.0
_LEASE_S = 5
_SLOW_S = 0.1


def check_network(config: Config) -> Iterator[Finding]:
    """Meeting points and ports; at most some seconds for each endpoint."""
    meeting = config.rendezvous
    yield from _name(meeting.master_addr)
    if meeting.backend == "local":
        yield ok("rendezvous", "local: one node, no server needed")
        yield from _port(meeting.master_port)
    elif meeting.backend == "etcd":
        yield from _etcd(config)
    else:
        yield from _connect(meeting.backend, meeting.endpoint)


def _name(host: str | None) -> Iterator[Finding]:
    if not host:
        return
    try:
        socket.getaddrinfo(host, None)
    except OSError as problem:
        yield error("master address", f"{host} cannot be looked up: {problem.strerror}")


def _port(port: int | None) -> Iterator[Finding]:
    if not port:
        yield ok("port", "a free one is chosen for each generation")
        return
    try:
        ports.reserve(port).close()
        yield ok("port", f"{port} is free")
    except OSError as problem:
        yield error("port", f"--master-port {port}: {problem.strerror}; leave it out to have a free one chosen")


def _connect(backend: str, endpoint: str) -> Iterator[Finding]:
    host, port = _split(endpoint)
    if not host or port is None:
        return
    began = clock.monotonic()
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        yield note("rendezvous", f"{backend}: nobody listens at {endpoint} now ({reason}); node 0 will, once it starts")
        return
    yield ok("rendezvous", f"{backend} at {endpoint}, reached in {seconds(clock.monotonic() - began)}")


def _split(endpoint: str) -> tuple[str, int | None]:
    host, _, port = endpoint.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdecimal() else (endpoint, None)


def _etcd(config: Config) -> Iterator[Finding]:
    from ftlaunch.rendezvous.etcd import Job, settings_from

    meeting = config.rendezvous
    job = Job(meeting.job_id, meeting.min_nodes, meeting.max_nodes)
    try:
        environ = {**config.environment, **meeting.secrets}
        settings = settings_from(meeting.endpoint, job, meeting.conf, environ)
    except RendezvousError as problem:
        yield error("etcd", str(problem))
        return
    reached = 0
    for endpoint in settings.endpoints:
        host, port = _split(endpoint.target)
        try:
            socket.create_connection((host, port or 0), _CONNECT_S).close()
            reached += 1
        except OSError as problem:
            yield warning("etcd", f"{endpoint.target} cannot be reached: {problem.strerror or problem}")
    if not reached:
        yield error("etcd", "none of its endpoints can be reached")
        return
    try:
        first_s, next_s = asyncio.run(_time_etcd(settings))
    except RendezvousError as problem:
        yield error("etcd", str(problem))
        return
    took = f"{seconds(first_s)} to connect, {seconds(next_s)} for a write"
    told = f"{reached} of {len(settings.endpoints)} endpoints; {took}"
    yield warning("etcd", f"{told}: slow, a recovery takes four of them") if next_s > _SLOW_S else ok("etcd", told)


async def _time_etcd(settings: object) -> tuple[float, float]:
    """Grant a lease, which is a write, and revoke it; how long each takes. No key is touched."""
    from ftlaunch.rendezvous.etcd import library
    from ftlaunch.rendezvous.etcd.client import EtcdClient

    client = EtcdClient(library.load(), settings)  # type: ignore[arg-type]
    try:
        began = clock.monotonic()
        lease, _ = await client.grant(_LEASE_S)
        connected = clock.monotonic()
        await client.revoke(lease, _CALL_S)
        return connected - began, clock.monotonic() - connected
    finally:
        await client.close()
