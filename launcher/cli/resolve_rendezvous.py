"""From torchrun's many ways to say how nodes meet to one :class:`RendezvousConfig`.

One node needs no meeting point, so everything that torchrun would run on one node becomes ``local``: ``--standalone``,
its default, ``static`` with any master address (Kubeflow's ``PET_*`` variables with one node), and ``c10d`` at an
endpoint on this machine. ``etcd`` is always taken at its word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftlaunch.launcher.cli import values
from ftlaunch.launcher.cli.machine import Machine, is_numeric
from ftlaunch.launcher.cli.settings import Settings
from ftlaunch.launcher.config import RendezvousConfig
from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.secrecy import is_secret
from ftlaunch.rendezvous.common import conf as conf_keys

C10D_PORT = 29400
STATIC_PORT = 29500
ETCD_PORT = 2379
ETCD_SECRETS = ("ETCDCTL_USER", "ETCDCTL_PASSWORD")
# Beside what our backends read: torchrun's, for its own.
_NUMERIC = conf_keys.NUMERIC | {
    *("close_timeout", "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "read_timeout", "rank")
}
_TEXTUAL = conf_keys.TEXTUAL | {"local_addr", "use_libuv"}
_ELSEWHERE = ("SLURM_NODEID", "JOB_COMPLETION_INDEX")


def rendezvous(settings: Settings, machine: Machine) -> RendezvousConfig:
    """Resolve; raises :class:`UsageError` for what cannot work whatever the other nodes do."""
    conf = _checked_conf(settings)
    least, most = settings["nnodes"]
    if most == 1 and settings.is_given("node-rank") and settings.spelled("node-rank") in _ELSEWHERE:
        settings.reset("node-rank", "there is one node")
    backend = settings["rdzv-backend"]
    if settings["standalone"]:
        return _standalone(settings, conf, least)
    if backend in {"etcd", "etcd-v2"}:
        return _etcd(settings, conf)
    if backend == "local":
        return _explicit_local(settings, conf, least)
    return (_static if backend == "static" else _c10d)(settings, machine, conf)


def _standalone(settings: Settings, conf: Mapping[str, str], least: int) -> RendezvousConfig:
    if least > 1:
        raise UsageError(
            f"--standalone runs on one node, but {settings.spelled('nnodes')} asks for {least}: leave one out"
        )
    for name in ("rdzv-backend", "rdzv-endpoint", "rdzv-id", "master-addr", "master-port"):
        if settings.is_flag(name):
            settings.notes.append(f"--{name} has no effect with --standalone")
        if settings.is_given(name):
            settings.reset(name, "--standalone")
    return _local(settings, conf, "--standalone", job_id="")


def _explicit_local(settings: Settings, conf: Mapping[str, str], least: int) -> RendezvousConfig:
    if least > 1:
        raise UsageError(
            f"the local rendezvous is for one node, but {settings.spelled('nnodes')} asks for {least}: "
            "--rdzv-backend etcd --rdzv-endpoint HOST:PORT joins several"
        )
    return _local(settings, conf, "one node", port=settings["master-port"], address=_given_address(settings))


def _static(settings: Settings, machine: Machine, conf: Mapping[str, str]) -> RendezvousConfig:
    least, most = settings["nnodes"]
    host, port = _single_endpoint(settings)
    if not host:
        host, port = settings["master-addr"], settings["master-port"]
    if most == 1:
        given = settings.is_given("rdzv-endpoint") or settings.is_given("master-addr")
        address = _own_address(host, machine, settings) if given else None
        return _local(settings, conf, "one node", port=port or None, address=address)
    if port == 0:
        raise UsageError("port 0 is a different port on every node: give --master-port a number from 1 to 65535")
    if least != most:
        settings.derive("nnodes", (most, most), f"{most}:{most}", "static nodes are fixed in number")
        settings.notes.append(
            f"a static rendezvous waits for all {most} nodes; --rdzv-backend etcd can start with {least}"
        )
    node_rank = _static_node_rank(settings, most)
    port = STATIC_PORT if port is None else port
    settings.derive("master-port", port, str(port), "static")
    return _several(settings, conf, "static", (most, most), _join(host, port), node_rank=node_rank, master=(host, port))


def _static_node_rank(settings: Settings, most: int) -> int:
    rank: int | None = settings["node-rank"]
    if rank is None:
        settings.derive("node-rank", 0, "0", "static")
        return 0
    if rank >= most:
        raise UsageError(
            f"{settings.spelled('node-rank')} must be from 0 to {most - 1} with {most} nodes, not '{rank}'"
        )
    return rank


def _c10d(settings: Settings, machine: Machine, conf: Mapping[str, str]) -> RendezvousConfig:
    least, most = settings["nnodes"]
    host, port = _single_endpoint(settings)
    if most == 1 and (not host or machine.is_local(host)):
        return _local(settings, conf, "one node, which is this one")
    if not host:
        raise UsageError(
            f"--rdzv-backend c10d with {settings.spelled('nnodes')} {least}:{most} needs --rdzv-endpoint HOST[:PORT]"
        )
    if port == 0:
        raise settings.error("rdzv-endpoint", "must name a port that all nodes know")
    return _several(settings, conf, "c10d", (least, most), _join(host, C10D_PORT if port is None else port))


def _etcd(settings: Settings, conf: Mapping[str, str]) -> RendezvousConfig:
    if settings["rdzv-backend"] == "etcd-v2":
        settings.derive("rdzv-backend", "etcd", "etcd", "etcd-v2 is another name for it")
        settings.notes.append("--rdzv-backend etcd-v2 is taken as etcd: ftlaunch speaks etcd's v3 API only")
    addresses = []
    for part in values.words(settings["rdzv-endpoint"]):
        scheme, separator, rest = part.rpartition("://")
        host, port = values.host_and_port(rest)
        addresses.append(f"{scheme}{separator}{_join(host, ETCD_PORT if port is None else port)}")
    if not addresses:
        raise UsageError("--rdzv-backend etcd needs --rdzv-endpoint HOST[:PORT], several with commas between")
    if not settings.is_given("rdzv-id"):
        settings.notes.append("no --rdzv-id: every job at this etcd that gives none meets under the name 'none'")
    return _several(settings, conf, "etcd", settings["nnodes"], ",".join(addresses), master=_etcd_master(settings))


def _etcd_master(settings: Settings) -> tuple[str | None, int | None]:
    return _given_address(settings), settings["master-port"]


def _local(
    settings: Settings,
    conf: Mapping[str, str],
    why: str,
    *,
    job_id: str | None = None,
    port: int | None = None,
    address: str | None = None,
) -> RendezvousConfig:
    if settings["nnodes"] != (1, 1):
        settings.derive("nnodes", (1, 1), "1:1", why)
    settings.derive("rdzv-backend", "local", "local", why)
    settings.derive("master-port", port, str(port or ""), "as given" if port else "a free one for every generation")
    settings.derive("master-addr", address, address or "localhost", "as given" if address else "one node")
    if job_id is None:
        job_id = "" if settings["rdzv-id"] == "none" else settings["rdzv-id"]
    if not job_id:
        settings.derive("rdzv-id", "", "", "a random one")
    return RendezvousConfig(
        backend="local",
        job_id=job_id,
        node_rank=settings["node-rank"],
        master_addr=address,
        master_port=port or None,
        local_addr=_local_address(settings, conf),
        conf=conf,
        allow_multiple_agents=settings["allow-multiple-agents-per-node"],
    )


def _several(
    settings: Settings,
    conf: Mapping[str, str],
    backend: str,
    nodes: tuple[int, int],
    endpoint: str,
    *,
    node_rank: int | None = None,
    master: tuple[str | None, int | None] = (None, None),
) -> RendezvousConfig:
    settings.derive("rdzv-endpoint", endpoint, endpoint, "with the port filled in")
    return RendezvousConfig(
        backend=backend,
        endpoint=endpoint,
        job_id=settings["rdzv-id"],
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        node_rank=settings["node-rank"] if node_rank is None else node_rank,
        master_addr=master[0],
        master_port=master[1],
        local_addr=_local_address(settings, conf),
        conf={**conf, **_timing(settings)},
        grow=settings["grow"],
        allow_multiple_agents=settings["allow-multiple-agents-per-node"],
    )


def _timing(settings: Settings) -> dict[str, str]:
    """Options that say the same as a key of ``--rdzv-conf``, and go before it."""
    found = {}
    if settings["node-timeout"] is not None:
        found["node_timeout"] = f"{settings['node-timeout']:g}"
    if settings["rdzv-outage-policy"] is not None:
        found["outage_policy"] = settings["rdzv-outage-policy"]
    return found


def _local_address(settings: Settings, conf: Mapping[str, str]) -> str | None:
    return settings["local-addr"] or conf.get("local_addr") or None


def _given_address(settings: Settings) -> str | None:
    return settings["master-addr"] if settings.is_given("master-addr") else None


def _own_address(host: str, machine: Machine, settings: Settings) -> str | None:
    """The master address if it is sure to be ours, else ``None`` for localhost.

    A name is never looked up: on one node it isn't needed, and a pod's own name may not resolve yet.
    """
    if host == "localhost":
        return host
    if not is_numeric(host):
        return None
    if machine.is_local(host):
        return host
    settings.notes.append(f"this machine does not have the address {host}; on one node ranks meet at localhost")
    return None


def _single_endpoint(settings: Settings) -> tuple[str, int | None]:
    endpoint = settings["rdzv-endpoint"]
    if not endpoint:
        return "", None
    if "," in endpoint or "://" in endpoint:
        raise settings.error("rdzv-endpoint", f"must be one HOST[:PORT] for --rdzv-backend {settings['rdzv-backend']}")
    return values.host_and_port(endpoint)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _checked_conf(settings: Settings) -> dict[str, str]:
    conf: dict[str, str] = settings["rdzv-conf"]
    for key, value in conf.items():
        if key in _NUMERIC and not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
            raise UsageError(f"{settings.spelled('rdzv-conf')} {key} must be a number, not {values.show(value)}")
        known = key in _NUMERIC or key in _TEXTUAL
        if (is_secret(key) and not known) or (key in ("user", "username") and ":" in value):
            raise UsageError(
                f"{settings.spelled('rdzv-conf')} must not hold a secret ({key}), which everybody here could read: "
                "write the password to a file and give password_file=PATH"
            )
        if not known:
            settings.notes.append(f"unknown key {values.show(key)} in {settings.spelled('rdzv-conf')}{_close_key(key)}")
    return conf


def _close_key(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, _NUMERIC | _TEXTUAL, n=1)
    return f"; did you mean {close[0]}?" if close else ""
