"""From ``--rdzv-endpoint``, ``--rdzv-conf`` and ``ETCDCTL_*`` to :class:`~.settings.EtcdSettings`.

The keys are torchelastic's where it has one (``cacert``, ``cert``, ``key``, ``protocol``, ``etcd_prefix``,
``join_timeout``, ``last_call_timeout``, ``timeout``; also etcd-v2's ``ca_cert``, ``ssl_cert``, ``ssl_cert_key``), and
the variables are etcdctl's. What ``--rdzv-conf`` says goes before the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.rendezvous.common.conf import CA, CERT, ETCD_DURATIONS, KEY, USER, durations
from ftlaunch.rendezvous.etcd.settings import Credentials, EtcdSettings, Tls, parse_endpoints, read_password_file
from ftlaunch.rendezvous.interface import SettingsError

_POLICIES = {"stop": True, "continue": False}


@dataclass(frozen=True)
class Job:
    """Which job, and how many nodes it wants."""

    job_id: str
    min_nodes: int
    max_nodes: int
    allow_multiple_agents_per_node: bool = False


def settings_from(endpoint: str, job: Job, conf: Mapping[str, str], environ: Mapping[str, str]) -> EtcdSettings:
    """Raises :class:`SettingsError` for what cannot be read."""
    endpoints, url_tls = parse_endpoints(endpoint or environ.get("ETCDCTL_ENDPOINTS", ""))
    if "password" in conf:
        raise SettingsError(
            "a password does not belong on a command line: use password_file=FILE in --rdzv-conf or ETCDCTL_PASSWORD"
        )
    waits = durations(conf, ETCD_DURATIONS)
    policy = conf.get("outage_policy", "stop")
    if policy not in _POLICIES:
        raise SettingsError(f"outage policy {policy!r} is neither stop nor continue")
    return EtcdSettings(
        endpoints=endpoints,
        job_id=job.job_id,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        root=conf.get("etcd_prefix", "/ftlaunch"),
        tls=_tls(conf, environ, url_tls),
        credentials=_credentials(conf, environ),
        stop_on_outage=_POLICIES[policy],
        allow_multiple_agents_per_node=job.allow_multiple_agents_per_node,
        **waits,
    )


def _tls(conf: Mapping[str, str], environ: Mapping[str, str], url_tls: bool | None) -> Tls | None:
    protocol = conf.get("protocol", {True: "https", False: "http", None: ""}[url_tls])
    if protocol not in ("", "http", "https"):
        raise SettingsError(f"protocol={protocol} in --rdzv-conf is neither http nor https")
    if url_tls is not None and protocol != ("https" if url_tls else "http"):
        raise SettingsError(f"protocol={protocol} in --rdzv-conf contradicts the rendezvous endpoint")
    tls = Tls(
        _first(conf, CA) or environ.get("ETCDCTL_CACERT") or None,
        _first(conf, CERT) or environ.get("ETCDCTL_CERT") or None,
        _first(conf, KEY) or environ.get("ETCDCTL_KEY") or None,
    )
    if protocol == "http":
        if _first(conf, CA) or _first(conf, CERT):
            raise SettingsError("certificates are given but the rendezvous protocol is http: use protocol=https")
        return None
    return tls if protocol == "https" or tls != Tls() else None


def _first(conf: Mapping[str, str], keys: tuple[str, ...]) -> str | None:
    return next((conf[key] for key in keys if conf.get(key)), None)


def _credentials(conf: Mapping[str, str], environ: Mapping[str, str]) -> Credentials | None:
    user = _first(conf, USER) or ""
    if not user and "user_file" in conf:
        user = read_password_file(conf["user_file"])
    if not user:
        user = environ.get("ETCDCTL_USER", "")
    # etcdctl takes the password after a colon, too.
    user, _, password = user.partition(":")
    if password and _first(conf, USER):
        raise SettingsError(
            "a password does not belong on a command line: use password_file=FILE in --rdzv-conf or ETCDCTL_PASSWORD"
        )
    if "password_file" in conf:
        password = read_password_file(conf["password_file"])
    password = password or environ.get("ETCDCTL_PASSWORD", "")
    if not user:
        return None
    if not password:
        raise SettingsError(
            f"etcd user {user} has no password: use password_file=FILE in --rdzv-conf or ETCDCTL_PASSWORD"
        )
    return Credentials(user, password)
