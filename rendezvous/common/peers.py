"""Seeing at once that an agent died although its host lives.

Each agent listens on a TCP port that its record tells. Peers connect, read the agent's node id in one line, and
hold the connection. When the process dies its kernel ends the connection, and then refuses a new one. Both together
prove that the process is gone. A refusal alone proves nothing: firewalls and routers refuse on behalf of hosts they
cannot reach. Nor does silence, or a connection that merely broke; then the lease decides.

Each node holds connections to the next few in group rank order, however many nodes there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
from collections.abc import Callable

from ftlaunch.rendezvous.common.records import Seat

WATCHED = 3
"""Peers that each node holds a connection to: so many neighbours may die at once and be seen by somebody."""

_HELLO_S = 2.0
_LINE_LIMIT = 1024
_RETRY_S = (0.05, 1.0, 5.0)
_MOST_PEERS = 256


class Proof(enum.Enum):
    """What a try to connect showed. ``GONE`` (refused, or somebody else answers) counts only for a peer met before."""

    ALIVE = "alive"
    GONE = "gone"
    NOTHING = "nothing"


class Doorbell:
    """Listens so that others can see that this process lives. The kernel answers even while the loop is busy.

    Plain sockets: an asyncio server that closes while it accepts loses what it has just accepted.
    """

    def __init__(self, node_id: str) -> None:
        self._greeting = node_id.encode() + b"\n"
        self._listening: socket.socket | None = None
        self._visitors: set[socket.socket] = set()

    def open(self) -> int:
        """Listen on a free port, greet who connects, and return the port. Raises :class:`OSError`."""
        try:
            listening = socket.create_server(("::", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
        except (OSError, ValueError):
            listening = socket.create_server(("0.0.0.0", 0), backlog=128)
        listening.setblocking(False)
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)
        port: int = listening.getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening and end all connections."""
        loop = asyncio.get_running_loop()
        if self._listening is not None:
            loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        for visitor in list(self._visitors):
            self._part(visitor)

    def _accept(self, listening: socket.socket) -> None:
        try:
            visitor, _ = listening.accept()
        except OSError:
            return
        if len(self._visitors) >= _MOST_PEERS:
            # Who is turned away for want of room connects again, which succeeds: no false proof.
            visitor.close()
            return
        visitor.setblocking(False)
        self._visitors.add(visitor)
        asyncio.get_running_loop().add_reader(visitor, self._listen_to, visitor)
        # An empty send buffer always has room for one line.
        with contextlib.suppress(OSError):
            visitor.send(self._greeting)

    def _listen_to(self, visitor: socket.socket) -> None:
        """What a visitor says does not matter, only that it is there."""
        try:
            if visitor.recv(_LINE_LIMIT):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._part(visitor)

    def _part(self, visitor: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(visitor)
        self._visitors.discard(visitor)
        visitor.close()


class Visit:
    """A try to connect to a peer: what it showed and, if alive, the connection."""

    def __init__(self, proof: Proof, reader: asyncio.StreamReader | None, writer: asyncio.StreamWriter | None) -> None:
        self.proof = proof
        self._reader = reader
        self._writer = writer

    async def until_broken(self) -> None:
        """Wait until the connection ends, for whatever reason."""
        if self._reader is None:
            return
        try:
            while await self._reader.read(_LINE_LIMIT):
                pass
        except OSError:
            pass

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()


async def visit(address: str, port: int, node_id: str, timeout_s: float = _HELLO_S) -> Visit:
    """Connect and see who is there. Takes at most twice ``timeout_s``."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port, limit=_LINE_LIMIT), timeout_s)
    except ConnectionRefusedError:
        return Visit(Proof.GONE, None, None)
    except (OSError, asyncio.TimeoutError, OverflowError, ValueError):
        # The last two: what the other side gave as its address is none.
        return Visit(Proof.NOTHING, None, None)
    proof = Proof.NOTHING
    try:
        line = await asyncio.wait_for(reader.readuntil(b"\n"), timeout_s)
        proof = Proof.ALIVE if line.strip() == node_id.encode() else Proof.GONE
    except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError):
        pass
    finally:
        if proof is not Proof.ALIVE:
            writer.close()
    return Visit(proof, reader, writer) if proof is Proof.ALIVE else Visit(proof, None, None)


async def probe(address: str, port: int, node_id: str) -> Proof:
    """Connect, see who is there, and hang up."""
    found = await visit(address, port, node_id)
    found.close()
    return found.proof


async def watch_over(seat: Seat, on_gone: Callable[[Seat], None]) -> None:
    """Hold a connection to a peer, making it anew whenever it breaks, until the peer is proven gone."""
    failures, known = 0, False
    while True:
        found = await visit(seat.address, seat.peer_port, seat.node_id)
        try:
            if found.proof is Proof.ALIVE:
                failures, known = 0, True
                await found.until_broken()
                continue
        finally:
            found.close()
        if found.proof is Proof.GONE and known:
            on_gone(seat)
            return
        await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
        failures += 1


def next_in_ring(seats: tuple[Seat, ...], node_id: str, count: int = WATCHED) -> tuple[Seat, ...]:
    """Whom this node watches over: up to ``count`` others."""
    ranks = {seat.node_id: rank for rank, seat in enumerate(seats)}
    if node_id not in ranks:
        return ()
    mine, size = ranks[node_id], len(seats)
    return tuple(seats[(mine + distance) % size] for distance in range(1, min(count, size - 1) + 1))
