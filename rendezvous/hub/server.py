"""The meeting point: the connections of all agents, in the agent that hosts it.

It learns of a death at once, by the end of a connection and the refusal of a new one, and of silence after the node
timeout. What a former meeting point had agreed on is brought back by the agents: each tells the last table it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable

from ftlaunch.rendezvous.common.part import new_attempt
from ftlaunch.rendezvous.common.peers import Proof, probe
from ftlaunch.rendezvous.common.records import (
    ClosedRecord,
    ExclusionsRecord,
    FailureRecord,
    GrowthRecord,
    RecordError,
    TableRecord,
)
from ftlaunch.rendezvous.common.table import difference
from ftlaunch.rendezvous.hub.frames import (
    LINE_LIMIT,
    Hello,
    answer_frame,
    frame,
    read_first_line,
    read_frame,
    read_wish,
    say_last,
    split_frame,
)
from ftlaunch.rendezvous.hub.jobstate import Guest, JobState, Spoken
from ftlaunch.rendezvous.hub.lessons import Lessons
from ftlaunch.rendezvous.hub.questions import Questions
from ftlaunch.rendezvous.hub.settings import HubSettings
from ftlaunch.rendezvous.interface import ExclusionAnswer, Publish, RendezvousError

log = logging.getLogger("ftlaunch.rendezvous")

_HELLO_S = 5.0
_ACCEPT_PAUSE_S = 0.1
_MAX_PING = 32
_LOOK_AGAIN_S = (0.01, 0.1, 1.0)
_MOST_UNREAD = 4 * LINE_LIMIT
MOST_STRANGERS = 128
"""Connections that have not said yet who they are."""
_WORDS: dict[type[Spoken], str] = {
    TableRecord: "table",
    FailureRecord: "failure",
    GrowthRecord: "growth",
    ClosedRecord: "closed",
    ExclusionsRecord: "excluded",
}


def listen_at(port: int) -> socket.socket:
    """A listening socket on all addresses of this machine. Raises :class:`OSError`."""
    try:
        listening = socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    except ValueError:
        listening = socket.create_server(("", port), backlog=1024)
    listening.setblocking(False)
    return listening


class Hub:
    """Everything runs on the loop that :meth:`serve` runs on."""

    def __init__(self, settings: HubSettings, host: Hello, publish: Publish) -> None:
        self._settings = settings
        self._host = host
        self._state = JobState(settings, host, publish, self._say, self._drop)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._departed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        questions = Questions(self._say_line, self._say_to)
        self._lessons = Lessons(lambda: self._state.view.table, lambda: list(self._writers), self._say_to)
        self._strangers: dict[socket.socket, asyncio.Task[None]] = {}
        self._handlers: dict[str, Callable[[Guest, bytes], None]] = {
            "node": self._state.learn_node,
            "failure": self._state.learn_failure,
            "finish": self._state.learn_finish,
            "closed": self._state.learn_closed,
            "table": self._state.learn_table,
            "question": questions.on_question,
            "answer": questions.on_answer,
            "lesson": self._lessons.on_lesson,
            "excluded": self._state.learn_excluded,
            "exclude": self._on_exclude,
            "ping": self._on_ping,
        }

    @property
    def reason(self) -> str:
        """What is waited for, or going on. May be read from any thread."""
        return self._state.reason

    async def serve(self, listening: socket.socket) -> None:
        """Let agents in, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:
                    # No descriptor left, or who came has gone again: not the end for all others.
                    log.debug("a connection to the rendezvous could not be taken in: %s", error)
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                    continue
                task = loop.create_task(self._converse(connection))
                self._tasks.add(task)
                self._strangers[connection] = task
                task.add_done_callback(functools.partial(self._ended, connection))
                if len(self._strangers) > MOST_STRANGERS:
                    # The one that has been silent for longest: an agent says who it is at once.
                    self._strangers.pop(next(iter(self._strangers))).cancel()
        finally:
            listening.close()

    async def close(self, drain_s: float) -> None:
        """Give the others up to ``drain_s`` to hear the last word and leave, then end all connections."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_alone(), drain_s)
        self._state.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    async def _until_alone(self) -> None:
        while set(self._writers) - {self._host.node_id}:
            self._departed.clear()
            await self._departed.wait()

    # --- connections --------------------------------------------------------------------------------------------------

    async def _converse(self, connection: socket.socket) -> None:
        try:
            guest, rest = await asyncio.wait_for(self._meet(connection), _HELLO_S)
        except (OSError, asyncio.TimeoutError):
            return
        self._strangers.pop(connection, None)
        if guest is None:
            return
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        reader.feed_data(rest)
        protocol, loop = asyncio.StreamReaderProtocol(reader), asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(lambda: protocol, sock=connection)
        except OSError:
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            self._welcome(guest, writer)
            await self._listen(guest, reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(connection, None)
        # A task that was cancelled before it began has closed nothing.
        connection.close()
        if not task.cancelled() and task.exception() is not None:
            log.error("the rendezvous lost a conversation", exc_info=task.exception())

    async def _meet(self, connection: socket.socket) -> tuple[Guest | None, bytes]:
        """Who it is that connects, and what it has said beyond its name; ``None`` for who does not belong here."""
        line, rest = await read_first_line(connection)
        word, payload = split_frame(line)
        if word != "hello":
            return None, b""
        try:
            hello = Hello.decode(payload)
        except RecordError as error:
            reason = f"the rendezvous at {self._settings.target} does not understand this agent: {error}"
        else:
            found = self._objection(hello)
            if found is None:
                return self._state.arrive(hello), rest
            reason = found
        await say_last(connection, frame("refused", ClosedRecord(2, reason, "", "", "").encode()))
        return None, b""

    def _welcome(self, guest: Guest, writer: asyncio.StreamWriter) -> None:
        self._writers[guest.hello.node_id] = writer
        view = self._state.view
        excluded = view.excluded if view.excluded.revision else None
        for record in (excluded, view.table, *view.failures.values(), view.growth, view.closed):
            if record is not None:
                writer.write(_line(record))
        self._lessons.welcome(guest.hello.node_id)

    def _objection(self, hello: Hello) -> str | None:
        """Why this agent does not belong here."""
        settings = self._settings
        if hello.job_id != settings.job_id:
            # Not telling of which: who knows the name of a job can join it.
            return f"{settings.target} is the rendezvous of another job, not of {hello.job_id!r}"
        if not settings.allow_multiple_agents_per_node and hello.machine:
            for other in (guest.hello for guest in self._state.guests.values()):
                if other.machine == hello.machine and other.node_id != hello.node_id:
                    return (
                        f"two agents of job {hello.job_id} run on {hello.host}: pid {other.pid} ({other.node_id}) and "
                        f"pid {hello.pid} ({hello.node_id}); start one per node, or give "
                        "--allow-multiple-agents-per-node"
                    )
        unlike = difference(hello.settings, self._host.settings, hello.name, self._host.name)
        if unlike is None:
            return None
        reason = f"the nodes of job {hello.job_id} were started differently: {unlike}"
        if self._state.view.table is None:
            self._state.tell(ClosedRecord(2, reason, hello.node_id, hello.host, new_attempt()))
        return reason

    async def _listen(self, guest: Guest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, loop = guest.hello.node_id, asyncio.get_running_loop()
        try:
            while True:
                got = await read_frame(reader)
                if got is None or self._writers.get(name) is not writer:
                    break
                guest.heard_at = loop.time()
                if got[0] == "bye":
                    self._state.depart(guest)
                    return
                self._hear(guest, *got)
        finally:
            current = self._writers.get(name) is writer
            if current:
                del self._writers[name]
                guest.here = False
                self._departed.set()
        if current:
            await self._examine(guest)

    def _hear(self, guest: Guest, word: str, payload: bytes) -> None:
        try:
            handler = self._handlers.get(word)
            if handler is None:
                raise RecordError("unknown")
            handler(guest, payload)
        except RecordError as error:
            log.warning("rendezvous: %r of node %s makes no sense: %s", word, guest.hello.node_id, str(error))

    async def _examine(self, guest: Guest) -> None:
        """The connection has ended: by the end of the process, if its host refuses another one."""
        hello = guest.hello
        proof = Proof.NOTHING
        # A process that is being torn down may still listen when its connection has ended, but greets nobody.
        for pause_s in (0.0, *_LOOK_AGAIN_S):
            await asyncio.sleep(pause_s)
            if guest.here or proof is not Proof.NOTHING:
                break
            proof = await probe(hello.address, hello.peer_port, hello.node_id)
        if proof is Proof.GONE and not guest.here:
            log.info("the agent of %s is gone: its connection ended and its host refuses another", hello.node_id)
            self._state.depart(guest)

    def _on_ping(self, guest: Guest, payload: bytes) -> None:
        if len(payload) > _MAX_PING:
            raise RecordError("too long")
        self._say_to(guest.hello.node_id, frame("pong", payload))

    def _on_exclude(self, guest: Guest, payload: bytes) -> None:
        attempt, wish = read_wish(payload)
        answer: ExclusionAnswer | RendezvousError
        try:
            answer = self._state.exclude(guest, wish)
        except RendezvousError as error:
            answer = error
        self._say_to(guest.hello.node_id, frame("decided", answer_frame(attempt, answer)))

    def _drop(self, guest: Guest) -> None:
        writer = self._writers.pop(guest.hello.node_id, None)
        if writer is not None:
            writer.transport.abort()

    def _say(self, record: Spoken) -> None:
        self._say_line(_line(record))

    def _say_line(self, line: bytes) -> None:
        for writer in self._writers.values():
            _write(writer, line)

    def _say_to(self, node_id: str, line: bytes) -> None:
        writer = self._writers.get(node_id)
        if writer is not None:
            _write(writer, line)


def _write(writer: asyncio.StreamWriter, line: bytes) -> None:
    """Never let somebody who does not read fill our memory."""
    if writer.transport.get_write_buffer_size() > _MOST_UNREAD:
        writer.transport.abort()
    else:
        writer.write(line)


def _line(record: Spoken) -> bytes:
    return frame(_WORDS[type(record)], record.encode())
