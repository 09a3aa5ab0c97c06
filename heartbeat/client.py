"""The worker's end of the heartbeat socket. Nothing here blocks for long, and nothing raises into training.

One process beats: the rank itself, or, below a ``--no-python`` program, the first process that calls the API. One
thread beats: the main thread, or the one that called ``init()``, or the one that runs the optimizer when no other has
beaten yet. Calls from any other thread or from a forked child send nothing, so nothing can speak for a stuck loop.

The descriptor lies in a high range: scripts that close everything from 3 up, and then open sockets of their own, must
never find ours under a number that means theirs.
"""

from __future__ import annotations

import itertools
import os
import sys
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, socket
from _struct import Struct
from _thread import get_ident
from os import getpid
from select import POLLOUT, poll
from time import monotonic_ns

from ftlaunch.heartbeat import compact
from ftlaunch.heartbeat.descriptors import high_descriptor
from ftlaunch.heartbeat.harmless import Harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The same numbers as in wire.py, which a worker does not import for the modules behind it.
MAX_BYTES = 65536
HELLO, BEAT, SECTION, LAST_WORDS, REQUEST, CHECKPOINT, MODULES, TICK = range(1, 9)
_HEAD = Struct("<2sBBII")
_TAIL = Struct("<QIqQ")
_MAX_STEP = (1 << 63) - 1

PATIENCE_NS = 200_000_000
"""How long messages that matter may wait for room in the agent's queue, in total until one gets through again."""
LAST_WORDS_NS = 100_000_000
_SIGCHLD = 17
_EAGER = 64
_RECONNECT_NS = 1_000_000_000
_MAX_SECTIONS = 32
_MAX_NAME = 64
_MAX_INFO_ITEMS = 32
_MAX_INFO_TEXT = 256

_UNUSED, _ON, _OFF = range(3)


class Client:
    """State of this process's beating. Use the module's :data:`CLIENT`."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.ticks = 0
        self.beaten = False
        self.hooked = False
        self.sections: list[str] = []
        self.on_first_beat: Callable[[], None] | None = None
        self.after_step: Callable[[int, int], None] | None = None
        """Called after each beat or tick, sent or not, with its kind and number; what it raises goes on. For drills."""
        self._state = _UNUSED
        self._pid = 0
        self._thread = 0
        self._thread_chosen = False
        self._explicit = False
        self._told_polling = False
        self._interval_ns = 0
        self._eager = _EAGER
        self._quiet_until_ns = 0
        self._address = ""
        self._socket: socket | None = None
        self._send: Callable[[bytes], int] = _closed
        self._heads: tuple[bytes, ...] = ()
        self._serial = 0
        self._numbers = itertools.count(1)
        self._repeat_sections = False
        self._patience_ns = PATIENCE_NS
        self._reconnect_at = 0

    # -- who may speak ------------------------------------------------------------------------------------------

    def silence(self) -> None:
        """Never speak in this process, as a standby that is not a rank yet; :meth:`attach` undoes it."""
        self._state = _OFF
        self._pid = -1

    def attach(self, environment: Mapping[str, str]) -> bool:
        """Connect as the environment says; False, and silent for ever, without an agent."""
        self.silence()
        address = environment.get("FTLAUNCH_SOCKET", "")
        generation = _number(environment.get("FTLAUNCH_GENERATION"))
        local_rank = _number(environment.get("LOCAL_RANK"))
        if not address or generation is None or local_rank is None:
            return False
        self._interval_ns = (_number(environment.get("FTLAUNCH_BEAT_INTERVAL_MS")) or 0) * 1_000_000
        self._quiet_until_ns, self._eager = 0, _EAGER
        self._heads = tuple(_HEAD.pack(b"ft", 1, kind, generation, local_rank) for kind in range(TICK + 1))
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._thread = _main_thread()
        self._pid = getpid()
        self._state = _ON
        self._connect()
        return True

    def _attach_late(self) -> bool:
        """Connect from a process that no bootstrap started, unless it is one of a beating process's children."""
        beater = os.environ.get("FTLAUNCH_BEATER")
        if _is_multiprocessing_child() or (beater is not None and beater != str(getpid())):
            self.silence()
            return False
        if not self.attach(os.environ):
            return False
        os.environ["FTLAUNCH_BEATER"] = str(getpid())
        self.hello("script")
        return True

    def choose_thread(self) -> None:
        """From now on the calling thread is the one whose beats count."""
        if self._mine():
            self._thread = get_ident()
            self._thread_chosen = True

    def _mine(self) -> bool:
        """Whether this process may speak at all."""
        if self._state == _UNUSED:
            return self._attach_late()
        return self._pid == getpid()

    def speaks_here(self) -> bool:
        """Whether the calling thread is the one whose beats count."""
        return self._mine() and self._thread == get_ident()

    # -- progress -----------------------------------------------------------------------------------------------

    def beat(self, step: int | None, info: dict[str, object]) -> None:
        """One BEAT: a non-blocking send, dropped when the agent's queue is full."""
        if self._pid != getpid() and not self._mine():
            return
        if self._thread != get_ident():
            return
        self._explicit = True
        if step is not None:
            self.step = _clean_step(step)
        number = self.step if step is not None and self.step is not None else -1
        payload = _clean_info(info) if info else None
        if self.step is None and self.ticks:
            # A script that gives no numbers is still counted by its optimizer: that is progress, too.
            self._progress(TICK, self.ticks, payload)
        else:
            self._progress(BEAT, number, payload)
        if self.after_step is not None:
            self.after_step(BEAT, number)

    def tick(self) -> None:
        """Count one optimizer step; one TICK unless the script beats by itself."""
        if self._pid != getpid():
            return
        thread = get_ident()
        if self._thread != thread:
            if self._thread_chosen or self.beaten:
                return
            # Nobody has beaten yet and here is a training loop: it runs in this thread.
            self._thread = thread
        self.ticks += 1
        if not self._explicit:
            self._progress(TICK, self.ticks, None)
            if self.after_step is not None:
                self.after_step(TICK, self.ticks)

    def _progress(self, kind: int, number: int, info: dict[str, object] | None) -> None:
        now_ns = monotonic_ns()
        if now_ns < self._quiet_until_ns and not self._repeat_sections:
            # Ten signs of life in a second are enough. Each wakes the agent, which costs more than all the rest.
            return
        if self._eager:
            # At first all of them, so that the agent soon knows the rhythm.
            self._eager -= 1
        else:
            self._quiet_until_ns = now_ns + self._interval_ns
        body = b""
        if info is not None or self._repeat_sections:
            payload: dict[str, object] = {"info": info} if info is not None else {}
            if self._repeat_sections:
                payload["sections"] = self.sections
            body = _body(payload)
        tail = _TAIL.pack(next(self._numbers), self._serial, number, now_ns)
        try:
            self._send(self._heads[kind] + tail + body)
        except OSError as error:
            self._lost(error)
        else:
            self._patience_ns = PATIENCE_NS
            self._repeat_sections = False
        if not self.beaten:
            self._first_beat()

    def _first_beat(self) -> None:
        self.beaten = True
        os.environ["FTLAUNCH_BEATER"] = str(self._pid)
        if self.on_first_beat is not None:
            with Harmless():
                self.on_first_beat()

    # -- sections -----------------------------------------------------------------------------------------------

    def open_section(self, name: str) -> bool:
        """Push a section and tell the agent; False for who may not speak."""
        may = self._mine() and self._thread == get_ident() and len(self.sections) < _MAX_SECTIONS
        if may:
            self.sections.append(str(name)[:_MAX_NAME])
            self._tell_sections()
        return may

    def close_section(self, name: str) -> None:
        """Take the innermost section of this name away and tell the agent."""
        name = str(name)[:_MAX_NAME]
        if self._pid == getpid() and self._thread == get_ident() and name in self.sections:
            del self.sections[len(self.sections) - 1 - self.sections[::-1].index(name)]
            self._tell_sections()

    def _tell_sections(self) -> None:
        self._serial = (self._serial + 1) & 0xFFFFFFFF
        self._repeat_sections = not self._send_patiently(SECTION, {"sections": self.sections})

    # -- other messages -----------------------------------------------------------------------------------------

    def hello(self, phase: str) -> None:
        """Tell how far the start-up is."""
        self.tell(HELLO, {"pid": getpid(), "phase": phase})

    def polls_save(self) -> None:
        """Tell once that the script asks by itself whether it should save."""
        if not self._told_polling:
            self._told_polling = True
            self.hello("polls")

    def tell(self, kind: int, payload: dict[str, object]) -> bool:
        """Send a message that matters; waits up to the remaining patience. From any thread. True when it was sent."""
        return self._mine() and self._send_patiently(kind, payload)

    def tell_raw(self, kind: int, body: bytes) -> bool:
        """As :meth:`tell`, with a payload that is encoded already."""
        return self._mine() and self._send_within(kind, body, self._patience_ns)

    def last_words(self, payload: dict[str, object]) -> bool:
        """Send LAST_WORDS, whatever happened before: waits up to LAST_WORDS_NS."""
        if self._pid != getpid() or not self._send_within(LAST_WORDS, _body(payload), LAST_WORDS_NS):
            return False
        # The agent reads beats in batches. This signal, which nobody minds (signal(7)), makes it look at once.
        with Harmless():
            os.kill(os.getppid(), _SIGCHLD)
        return True

    def _send_patiently(self, kind: int, payload: dict[str, object]) -> bool:
        return self._send_within(kind, _body(payload), self._patience_ns)

    def _send_within(self, kind: int, body: bytes, limit_ns: int) -> bool:
        """Send, waiting at most ``limit_ns`` for room; never raises :class:`OSError`."""
        step = -1 if self.step is None else self.step
        data = self._heads[kind] + _TAIL.pack(next(self._numbers), self._serial, step, monotonic_ns()) + body
        if len(data) > MAX_BYTES:
            return False
        deadline = monotonic_ns() + limit_ns
        tries = 0
        while True:
            try:
                self._send(data)
            except BlockingIOError:
                left_ns = deadline - monotonic_ns()
                if left_ns <= 0:
                    self._patience_ns = 0
                    return False
                self._wait_for_room(left_ns)
            except OSError as error:
                tries += 1
                if tries > 1 or not self._lost(error):
                    return False
            else:
                self._patience_ns = PATIENCE_NS
                return True

    def _wait_for_room(self, limit_ns: int) -> None:
        if self._socket is not None:
            room = poll()
            room.register(self._socket, POLLOUT)
            room.poll(limit_ns / 1e6)

    # -- connection ---------------------------------------------------------------------------------------------

    def _lost(self, error: OSError) -> bool:
        """After a failed send: connect again if the descriptor is gone, at most once a second. True if connected."""
        if isinstance(error, BlockingIOError):
            return False
        now = monotonic_ns()
        if now < self._reconnect_at:
            return False
        self._reconnect_at = now + _RECONNECT_NS
        self._repeat_sections = True
        return self._connect()

    def _connect(self) -> bool:
        self.disconnect()
        try:
            opened = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
            connection = socket(fileno=high_descriptor(opened.detach()))
            connection.setblocking(False)
            connection.connect(self._address)
        except (OSError, ValueError):
            return False
        self._socket = connection
        self._send = connection.send
        return True

    def disconnect(self) -> None:
        """Close the descriptor, unless the script has closed it and the number is somebody else's by now."""
        connection, self._socket, self._send = self._socket, None, _closed
        if connection is None:
            return
        try:
            peer = connection.getpeername()
            ours = self._address in (peer, os.fsdecode(peer))
        except (OSError, TypeError):
            ours = False
        if ours:
            connection.close()
        else:
            connection.detach()


def _closed(data: bytes) -> int:
    raise OSError(9, "not connected")


def _number(text: str | None) -> int | None:
    number = int(text) if text is not None and text.isdigit() else 1 << 32
    return number if number < 1 << 32 else None


def _main_thread() -> int:
    threading = sys.modules.get("threading")
    # Without threading nobody but the main thread can be running Python here.
    return int(threading.main_thread().ident) if threading is not None else get_ident()


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _clean_step(step: object) -> int | None:
    number = -1
    with Harmless():
        number = int(step)  # type: ignore[call-overload]
    return number if 0 <= number <= _MAX_STEP else None


def _clean_info(info: dict[str, object]) -> dict[str, object]:
    clean: dict[str, object] = {}
    for key in list(info)[:_MAX_INFO_ITEMS]:
        value = info[key]
        if value is not None and not isinstance(value, (bool, int, float)):
            value = _as_number_or_text(value)
        clean[key[:_MAX_NAME]] = value
    return clean


def _as_number_or_text(value: object) -> object:
    if not isinstance(value, str):
        with Harmless():
            return float(value)  # type: ignore[arg-type]
    with Harmless():
        return str(value)[:_MAX_INFO_TEXT]
    return None


def _body(payload: dict[str, object]) -> bytes:
    try:
        return compact.dumps(payload) if payload else b""
    except (ValueError, TypeError):
        return b""


CLIENT = Client()
os.register_at_fork(after_in_child=CLIENT.disconnect)
