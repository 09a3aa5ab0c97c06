"""The end of a program by an exception: printed as the interpreter would, then told to the agent.

The order matters. First the traceback is on stderr, as the script's own ``sys.excepthook`` wants it. Then the last
words are sent, while the process still has to give back its memory (65 ms per GiB): the agent acts on them at once,
and may kill the process. Then the exception goes on, with printing switched off, so that the exit code, the death by
SIGINT and the finalisation are the interpreter's own.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

from ftlaunch.heartbeat import farewell
from ftlaunch.heartbeat.client import CLIENT
from ftlaunch.heartbeat.harmless import Harmless
from ftlaunch.heartbeat.installed import is_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import TextIO

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_HEAD_CHARS = 8 << 10
_TAIL_CHARS = 24 << 10
_MAX_BYTES = 32 << 10
_MAX_MESSAGE = 4000
_SIGINT = 2


def report(error: BaseException) -> None:
    """Print what ends the program and send the last words. Never raises, but for a ``SystemExit`` of an excepthook."""
    if isinstance(error, SystemExit):
        code = _exit_code(error)
        if code:
            _last_words(error, code)
        return
    strip(error)
    _flush()
    hook = getattr(sys, "excepthook", None)
    try:
        _show(error)
    except SystemExit as stop:
        # The hook has the last say about the code.
        code = _exit_code(stop)
        if code:
            _last_words(error, code)
        raise
    _last_words(error, -_SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    sys.excepthook = _Printed(hook)


def strip(error: BaseException) -> None:
    """Take our own frames out of the tracebacks of an exception, its causes and its group."""
    for each in _related(error):
        traceback = each.__traceback__
        while traceback is not None and _is_ours(traceback):
            traceback = traceback.tb_next
        each.__traceback__ = traceback
        while traceback is not None:
            following = traceback.tb_next
            while following is not None and _is_ours(following):
                following = following.tb_next
            if following is not traceback.tb_next:
                traceback.tb_next = following
            traceback = following


def _related(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        found = [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        waiting += [other for other in found if isinstance(other, BaseException)]


def _is_ours(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_filename.startswith(_OURS)


class _Printed:
    """Stands in for ``sys.excepthook`` while the interpreter 'prints' what is printed already."""

    def __init__(self, hook: object) -> None:
        self.hook = hook

    def __call__(self, *_: object) -> None:
        if self.hook is None:
            del sys.excepthook
        else:
            sys.excepthook = self.hook  # type: ignore[assignment]


def _show(error: BaseException) -> None:
    """Call ``sys.excepthook`` with everything that the interpreter does around it (``PyErr_PrintEx``)."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        _write("sys.excepthook is missing\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
        return
    sys.audit("sys.excepthook", sys.excepthook, type(error), error, error.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as second:  # noqa: BLE001 - the interpreter catches all as well
        strip(second)
        second.__context__ = None
        _write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        _write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    _flush()


def _exit_code(error: SystemExit) -> int:
    """The exit code; a message is printed now instead of later, for the process may not live that long."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    if not sys.flags.inspect:
        _flush()
        _write(f"{code}\n")
        _flush()
        error.code = 1
    return 1


def _write(text: str) -> None:
    with Harmless():
        sys.stderr.write(text)


def _flush() -> None:
    for stream in (sys.stderr, sys.stdout):
        with Harmless():
            stream.flush()


class _Collector:
    """Takes what is printed to ``sys.stderr`` by this thread, keeping its beginning and its end."""

    def __init__(self, real: TextIO | None) -> None:
        self.head = ""
        self.tail = ""
        self._real = real
        self._thread = get_ident()

    def write(self, text: str) -> int:
        if get_ident() != self._thread:
            return self._real.write(text) if self._real is not None else 0
        room = _HEAD_CHARS - len(self.head)
        self.head += text[:room]
        self.tail = (self.tail + text[room:])[-2 * _TAIL_CHARS :]
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered elsewhere."""

    def text(self) -> str:
        if len(self.tail) > _TAIL_CHARS:
            return f"{self.head}\n[...]\n{self.tail[-_TAIL_CHARS:]}"
        return self.head + self.tail


def render(error: BaseException) -> str:
    """The traceback as the interpreter prints it, at most 32 kB, cut in the middle.

    By the interpreter's own printer: the traceback module would be 10 ms of imports, from wherever the script's
    ``sys.path`` finds them.
    """
    real = sys.stderr
    collector = _Collector(real)
    sys.stderr = collector
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    finally:
        sys.stderr = real
    text = collector.text()
    size = len(text.encode("utf-8", "backslashreplace"))
    if size > _MAX_BYTES:
        keep = len(text) * _MAX_BYTES // size // 2
        text = f"{text[:keep]}\n[...]\n{text[-keep:]}"
    return text


def _last_words(error: BaseException, exit_code: int) -> None:
    with Harmless():
        if CLIENT.last_words(describe(error, exit_code)) and exit_code > 0:
            farewell.expect(exit_code)


def describe(error: BaseException, exit_code: int) -> dict[str, object]:
    """The payload of LAST_WORDS, as :class:`ftlaunch.heartbeat.watching.lastwords.LastWords` reads it."""
    kind = type(error)
    module = kind.__module__
    return {
        "type": kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}",
        "message": _message(error)[:_MAX_MESSAGE],
        "traceback": "" if isinstance(error, SystemExit) else render(error),
        "place": _place(error),
        "exit_code": exit_code,
        "step": CLIENT.step,
        "ticks": CLIENT.ticks,
        "beaten": CLIENT.beaten,
        "errno": _errno(error),
    }


def _message(error: BaseException) -> str:
    with Harmless():
        return str(error)
    return "<exception str() failed>"


def _errno(error: BaseException) -> int | None:
    for each in _related(error):
        if isinstance(each, OSError) and isinstance(each.errno, int):
            return each.errno
    return None


def _place(error: BaseException) -> str:
    """``file:line`` of the innermost frame of the user's own code; of the innermost frame at all if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    place = innermost = ""
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        innermost = f"{file}:{traceback.tb_lineno}"
        if not (file.startswith((_OURS, "<frozen ")) or is_installed(file)):
            place = innermost
        traceback = traceback.tb_next
    return place or innermost
