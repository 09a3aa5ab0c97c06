"""Hold a TCP port for somebody else to listen on.

A port that was probed and released can be taken before its user binds it. So the port is kept *bound* but not
listening, with SO_REUSEADDR: the kernel gives it to nobody else who asks for any free port, yet a server that also sets
SO_REUSEADDR (torch's TCPStore does) may bind and listen on it (socket(7); tried on Linux 6.18).
"""

from __future__ import annotations

import errno
import socket


class PortReservation:
    """A port of this machine that stays ours until :meth:`close`. Closing twice is harmless."""

    def __init__(self, holder: socket.socket) -> None:
        self._holder = holder
        self.port: int = holder.getsockname()[1]

    def close(self) -> None:
        """Give the port back. A server that listens on it by now is not disturbed."""
        self._holder.close()


def reserve(port: int = 0) -> PortReservation:
    """Reserve ``port``, by default one that the kernel picks.

    Raises :class:`OSError` (EADDRINUSE) when somebody listens on the port already.
    """
    try:
        return PortReservation(_bound(socket.AF_INET6, "::", port))
    except OSError as error:
        if socket.has_ipv6 and _is_taken(error):
            raise
        # No IPv6 in this kernel or container: the wildcard of IPv4 covers all there is.
        return PortReservation(_bound(socket.AF_INET, "0.0.0.0", port))


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    holder = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((host, port))
    except BaseException:
        holder.close()
        raise
    return holder


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)
