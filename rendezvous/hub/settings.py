"""Where nodes meet without a server, and whether this node is the one that hosts the meeting point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.rendezvous.common.conf import DURATIONS, durations
from ftlaunch.rendezvous.interface import SettingsError

_TRUE, _FALSE = frozenset({"1", "true", "t", "yes", "y"}), frozenset({"0", "false", "f", "no", "n"})


@dataclass(frozen=True)
class HubSettings:
    """Everything the backend needs to know. Durations are seconds.

    ``is_host``: whether this node hosts; ``None``: it does if the address is its own. ``node_timeout_s`` and
    ``fence_margin_s`` are those of :class:`~ftlaunch.rendezvous.etcd.EtcdSettings`.
    """

    host: str
    port: int
    job_id: str
    min_nodes: int = 1
    max_nodes: int = 1
    is_host: bool | None = None
    node_timeout_s: float = 10.0
    fence_margin_s: float | None = None
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0
    allow_multiple_agents_per_node: bool = False

    @property
    def margin_s(self) -> float:
        """How long before its time is over a node must begin to stop its workers."""
        return self.node_timeout_s / 5 if self.fence_margin_s is None else self.fence_margin_s

    @property
    def target(self) -> str:
        """``host:port`` for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Meeting:
    """Which job meets where. ``node_rank`` decides who hosts a static one, and only that."""

    backend: str
    host: str
    port: int
    job_id: str
    min_nodes: int
    max_nodes: int
    node_rank: int | None = None


def settings_from(
    meeting: Meeting, conf: Mapping[str, str], allow_multiple_agents_per_node: bool = False
) -> HubSettings:
    """Read ``--rdzv-conf`` with torchrun's names. Raises :class:`SettingsError`."""
    waits = durations(conf, DURATIONS)
    if conf.get("store_type", "tcp") != "tcp":
        raise SettingsError(f"store_type={conf['store_type']} in --rdzv-conf: nodes meet by TCP only")
    is_host = _flag(conf["is_host"]) if "is_host" in conf else None
    if meeting.backend == "static":
        is_host = meeting.node_rank in (0, None)
    return HubSettings(
        host=meeting.host,
        port=meeting.port,
        job_id=meeting.job_id,
        min_nodes=meeting.min_nodes,
        max_nodes=meeting.max_nodes,
        is_host=is_host,
        allow_multiple_agents_per_node=allow_multiple_agents_per_node,
        **waits,
    )


def check(settings: HubSettings) -> None:
    """Find what is wrong before any connection. Raises :class:`SettingsError`."""
    if not settings.host or not 0 < settings.port < 65536:
        raise SettingsError(f"rendezvous endpoint {settings.target!r} is not HOST:PORT")
    if not 0 < settings.min_nodes <= settings.max_nodes:
        raise SettingsError(f"--nnodes {settings.min_nodes}:{settings.max_nodes}: not 0 < MIN <= MAX")
    if settings.node_timeout_s <= 0 or not 0 <= settings.margin_s < settings.node_timeout_s:
        raise SettingsError(
            f"--node-timeout {settings.node_timeout_s:g} must be longer than the fencing margin {settings.margin_s:g} s"
        )


def _flag(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise SettingsError(f"is_host={text} in --rdzv-conf is neither true nor false")
