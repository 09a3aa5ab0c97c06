"""What this node is called, which machine it is, and which of its addresses others can reach."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.rendezvous.interface import SettingsError


@dataclass(frozen=True)
class NodeDescription:
    """What this node is. ``settings`` must be the same on all nodes of the job; a difference ends it.

    ``machine`` says which agents would share a machine; empty: not checked. ``master_port`` is a fixed port the user
    asked for, else each generation gets a fresh one.
    """

    node_id: str
    host: str
    pid: int
    machine: str = ""
    node_rank: int | None = None
    local_addr: str | None = None
    master_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def describe_node(
    settings: Mapping[str, str],
    node_rank: int | None = None,
    local_addr: str | None = None,
    master_port: int | None = None,
) -> NodeDescription:
    """This process on this machine. The node id is new for each process: its ghost is never mistaken for it."""
    host = os.uname().nodename
    return NodeDescription(
        node_id=f"{host}-{uuid.uuid4().hex[:12]}",
        host=host,
        pid=os.getpid(),
        machine=machine_digest(host),
        node_rank=node_rank,
        local_addr=local_addr,
        master_port=master_port,
        settings=dict(settings),
    )


def machine_digest(host: str) -> str:
    """The same for all processes that would fight for the same devices, different for containers of one host.

    Made of the boot id (random(4)), the host name, and the pid and network namespaces (namespaces(7)).
    """
    parts = [host, _boot_id()]
    for name in ("pid", "net"):
        try:
            parts.append(os.readlink(f"/proc/self/ns/{name}"))
        except OSError:
            parts.append("")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def address_towards(endpoints: Sequence[tuple[str, int]]) -> str:
    """The address of this machine from which the rendezvous is reached: others on that network can reach it too.

    Connecting a UDP socket only asks the kernel for the route; nothing is sent (udp(7)). Names of endpoints are looked
    up, addresses never are. Raises :class:`SettingsError` when no endpoint's name resolves or no route leads there.
    """
    reasons = []
    for host, port in endpoints:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError as error:
            reasons.append(f"{host}: {error.strerror}")
            continue
        for family, kind, protocol, _, address in found:
            try:
                with socket.socket(family, kind, protocol) as asking:
                    asking.connect(address)
                    own: str = asking.getsockname()[0]
                    return own
            except OSError as error:
                reasons.append(f"{host}: {error.strerror}")
    raise SettingsError(f"no way to the rendezvous endpoint ({'; '.join(reasons)}); is --rdzv-endpoint right?")
