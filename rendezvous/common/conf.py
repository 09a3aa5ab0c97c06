"""The keys of ``--rdzv-conf`` that a backend reads, and what all of them read alike."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.rendezvous.interface import SettingsError

DURATIONS = {
    "node_timeout": "node_timeout_s",
    "fence_margin": "fence_margin_s",
    "join_timeout": "join_timeout_s",
    "last_call_timeout": "last_call_s",
}
"""Of every backend of several nodes: key and field of its settings."""
ETCD_DURATIONS = {
    **DURATIONS,
    "connect_timeout": "connect_timeout_s",
    "call_timeout": "call_timeout_s",
    "state_ttl": "state_ttl_s",
    "tombstone_ttl": "tombstone_ttl_s",
}
CA = ("cacert", "ca_cert")
CERT = ("cert", "ssl_cert")
KEY = ("key", "ssl_cert_key")
USER = ("user", "username")
NUMERIC = frozenset({*ETCD_DURATIONS, "timeout"})
"""All keys whose value is a number."""
TEXTUAL = frozenset(
    {
        *(*CA, *CERT, *KEY, *USER),
        *("protocol", "etcd_prefix", "user_file", "password_file", "outage_policy"),
        *("store_type", "is_host"),
    }
)
"""All others."""


def durations(conf: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, float]:
    """Seconds by field name; ``fields`` maps the keys. torchrun's ``timeout`` is how long to wait for the others.

    Raises :class:`SettingsError`.
    """
    found = {fields[key]: _seconds(key, conf[key]) for key in conf if key in fields}
    if "timeout" in conf:
        found.setdefault("join_timeout_s", _seconds("timeout", conf["timeout"]))
    return found


def _seconds(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10**9:
        raise SettingsError(f"{key}={text} in --rdzv-conf is not a number of seconds")
    return value
