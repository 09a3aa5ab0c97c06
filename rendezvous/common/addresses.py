"""Which addresses are this machine's."""

from __future__ import annotations

import socket


def is_own_address(host: str) -> bool:
    """Whether an address, or the name of one, belongs to this machine. May wait for a name server.

    An address is ours if a socket can be bound to it (EADDRNOTAVAIL otherwise, ip(7)); our own host name is ours even
    where it resolves to something else. A name that cannot be looked up is not ours.
    """
    if host.lower() in {"localhost", socket.gethostname().lower()}:
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.bind(address)
            return True
    except OSError:
        return False
