"""What agents and the meeting point say to each other: one line each, a word and a JSON object; never pickle.

=========  ==================  ===========================================================
word       who says it         what it carries
=========  ==================  ===========================================================
hello      agent, first        :class:`Hello`
node       agent               its :class:`~ftlaunch.rendezvous.common.records.NodeRecord`
failure    both                a generation ended; the first to say so wins
finish     agent               all ranks of this node succeeded
closed     both                the job is over; the first to say so wins
exclude    agent               a wish to leave a node out; the hub answers it alone, with ``decided``
excluded   both                nodes that are left out; from an agent: the last it knows
table      both                a rank table; from an agent: the last one it knows
growth     hub                 nodes wait to be taken in
bye        agent               it leaves in good order
ping       agent               a number; the hub answers ``pong`` with the same
question   both                what one agent asks all others, and in the end what came of it
answer     both                what one agent says to a question; the hub passes it on to who asked
lesson     both                what spares may import ahead; the hub passes it on to nodes without a seat
refused    hub                 this agent does not belong here; exit code and reason
=========  ==================  ===========================================================
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from ftlaunch.rendezvous.common.records import MAX_BYTES, VERSION, RecordError, load, printable
from ftlaunch.rendezvous.interface import ExclusionAnswer, ExclusionWish, RendezvousError

T = TypeVar("T", ExclusionWish, ExclusionAnswer)
LINE_LIMIT = MAX_BYTES + 65536
HELLO_LIMIT = 16384
_HELLO = {"job_id": str, "node_id": str, "host": str, "pid": int, "address": str, "peer_port": int, "machine": str}


@dataclass(frozen=True)
class Hello:
    """Who connects, and how it was started."""

    job_id: str
    node_id: str
    host: str
    pid: int
    address: str
    peer_port: int
    machine: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For messages to people."""
        return f"{self.host} (pid {self.pid})"

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps({"v": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> Hello:
        """Raises :class:`~ftlaunch.rendezvous.common.records.RecordError`."""
        raw = load(value)
        if any(type(raw.get(name)) is not kind for name, kind in _HELLO.items()):
            raise RecordError("not a hello")
        settings = raw.get("settings")
        if not isinstance(settings, dict):
            raise RecordError("not a hello")
        values: dict[str, Any] = {name: printable(raw[name]) for name in _HELLO}
        return cls(**values, settings={printable(key): printable(str(value)) for key, value in settings.items()})


def wish_frame(attempt: str, wish: ExclusionWish) -> bytes:
    """The JSON of a wish, and of its attempt, by which the answer is known."""
    return json.dumps({"v": VERSION, "attempt": attempt, "wish": asdict(wish)}).encode()


def read_wish(payload: bytes) -> tuple[str, ExclusionWish]:
    """Raises :class:`~ftlaunch.rendezvous.common.records.RecordError`."""
    raw = load(payload)
    return str(raw.get("attempt")), _read(ExclusionWish, raw.get("wish"))


def answer_frame(attempt: str, answer: ExclusionAnswer | RendezvousError) -> bytes:
    """The JSON of the answer to a wish."""
    told = {"error": str(answer)} if isinstance(answer, RendezvousError) else {"answer": asdict(answer)}
    return json.dumps({"v": VERSION, "attempt": attempt, **told}).encode()


def read_answer(payload: bytes) -> tuple[str, ExclusionAnswer | RendezvousError]:
    """Raises :class:`~ftlaunch.rendezvous.common.records.RecordError`."""
    raw = load(payload)
    refused = "error" in raw
    answer = RendezvousError(str(raw["error"])) if refused else _read(ExclusionAnswer, raw.get("answer"))
    return str(raw.get("attempt")), answer


def _read(kind: type[T], raw: Any) -> T:
    try:
        made = kind(**{name: printable(value) for name, value in raw.items()})
    except (AttributeError, TypeError):
        raise RecordError(f"not an {kind.__name__}") from None
    # The annotations of these are plain names.
    if any(type(getattr(made, each.name)).__name__ != each.type for each in fields(made)):
        raise RecordError(f"not an {kind.__name__}")
    return made


def frame(word: str, payload: bytes = b"{}") -> bytes:
    """One line."""
    return word.encode() + b" " + payload + b"\n"


async def read_frame(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    """The next line, ``None`` at the end of the connection and for what is no line at all."""
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        return None
    return split_frame(line)


def split_frame(line: bytes) -> tuple[str, bytes]:
    """The word and what it carries."""
    word, _, payload = line.rstrip(b"\n").partition(b" ")
    return word.decode(errors="replace"), payload


async def read_first_line(connection: socket.socket) -> tuple[bytes, bytes]:
    """The first line of somebody unknown, short as it must be, and what came after it. Raises :class:`OSError`.

    Empty for what is no line: a stranger can make us hold no more than :data:`HELLO_LIMIT` bytes.
    """
    seen, loop = b"", asyncio.get_running_loop()
    while len(seen) < HELLO_LIMIT:
        more = await loop.sock_recv(connection, HELLO_LIMIT - len(seen))
        if not more:
            break
        seen += more
        line, newline, rest = seen.partition(b"\n")
        if newline:
            return line, rest
    return b"", b""


async def say_last(connection: socket.socket, line: bytes) -> None:
    """Send a line and wait for the other side to hang up: a socket closed before all is read loses what it has sent.

    Raises :class:`OSError`.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, line)
    connection.shutdown(socket.SHUT_WR)
    while await loop.sock_recv(connection, HELLO_LIMIT):
        pass
