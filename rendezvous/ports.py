"""Hold a TCP port for somebody else to listen on.

A port that was probed and released can be taken before its user binds it. So the port is kept *bound* but not
listening, with SO_REUSEADDR: the kernel gives it to nobody else who asks for any free port, yet a server that also sets
SO_REUSEADDR (torch's TCPStore does) may bind and listen on it (socket(7); tried on Linux 6.18).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator


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


def listener_on(port: int) -> str:
    """Who listens on a port of this machine, as ``pid 4711 (python3)``; empty where that cannot be read.

    Reads the descriptors of all processes we may look into (proc(5)): for error messages only.
    """
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for pid in filter(str.isdigit, os.listdir("/proc") if wanted else ()):
        with contextlib.suppress(OSError):
            links = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
            if any(link in wanted for link in links):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
                    return f"pid {pid} ({comm.read().strip()})"
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    """Column 2 is the local address in hexadecimal, column 4 the state (0A: listening), column 10 the inode."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if len(fields) > 9 and fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                    yield fields[9]
