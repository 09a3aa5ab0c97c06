"""What a training script may tell its agent, and ask it. Standard library only; without an agent, silent no-ops.

    from ftlaunch import heartbeat

    for step, batch in enumerate(loader):
        ...
        heartbeat.beat(step)
        if step % 1000 == 0:
            with heartbeat.section("eval"):
                evaluate()

None of it is needed: optimizer steps, ``torch.save`` and ``init_process_group`` are noticed by hooks. Nothing here
raises because of the agent, and nothing blocks on it for longer than 200 ms in total.

Who counts: one process, the rank itself; its children (data-loader workers, ``fork``, ``multiprocessing``) are silent.
Below a ``--no-python`` program, the first process that calls :func:`beat`. And one thread, the main one, unless
:func:`init` says otherwise: **a beat from any other thread is ignored**, since a timer thread would beat on for a
training loop that is stuck.
"""

from __future__ import annotations

import os

from ftlaunch.heartbeat import flags as _flags
from ftlaunch.heartbeat.client import CHECKPOINT as _CHECKPOINT
from ftlaunch.heartbeat.client import CLIENT as _CLIENT
from ftlaunch.heartbeat.client import REQUEST as _REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    _Function = TypeVar("_Function", bound=Callable[..., Any])

__all__ = [
    "Section",
    "beat",
    "checkpoint_saved",
    "init",
    "request_restart",
    "request_stop",
    "restart_count",
    "resume_path",
    "resume_step",
    "section",
    "should_save",
]

_COROUTINE = 0x80 | 0x100  # CO_COROUTINE and CO_ITERABLE_COROUTINE of the inspect module
_MAX_REASON = 1000
_MAX_PATH = 4096


def init() -> None:
    """Make the calling thread the one whose beats, sections and optimizer steps count.

    Needed by a script that trains in another thread than its main one. It also says that steps are to be expected, so
    that ``--init-timeout`` counts for a script that uses no optimizer of torch.
    """
    _CLIENT.choose_thread()
    _CLIENT.hello("init")


def beat(step: int | None = None, **info: object) -> None:
    """Say that training made progress. About 3 µs: one non-blocking send, dropped when the agent does not keep up.

    ``step`` is the script's own step number, shown in reports and used to recognise a failure that repeats. ``info``
    (at most 32 items, numbers or short strings) is shown beside it; a tensor is converted with ``float()``, which waits
    for its device. After the first call, optimizer steps are no longer reported by themselves: beat once per step then.
    Without ``step``, the optimizer's steps so far are told instead, if torch has made any.
    """
    _CLIENT.beat(step, info)


class Section:
    """A named stretch of time with a time-out of its own. Context manager, reusable, nestable; also a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Section:
        _CLIENT.open_section(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _CLIENT.close_section(self.name)

    def __call__(self, function: _Function) -> _Function:
        """Wrap a function, or a coroutine function, so that each call is a section."""
        import functools

        name = self.name
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _COROUTINE:

            @functools.wraps(function)
            async def in_section(*args: Any, **kwargs: Any) -> Any:
                with Section(name):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def in_section(*args: Any, **kwargs: Any) -> Any:
                with Section(name):
                    return function(*args, **kwargs)

        return in_section  # type: ignore[return-value]


def section(name: str) -> Section:
    """Open a section for the ``with`` block or the decorated function: ``checkpoint``, ``eval``, ``init`` or your own.

    While it is open the limit of ``--section-timeout NAME=SECONDS`` (else the calibrated one) applies instead of the
    one for steps. Ignored outside the thread that beats. Costs one send at each end, about 5 µs.
    """
    return Section(name)


def request_restart(reason: str) -> bool:
    """Ask for a new generation: all ranks are stopped and start again. From any thread; True when the agent was told.

    Returns at once; the script goes on until it is stopped.
    """
    return _CLIENT.tell(_REQUEST, {"what": "restart", "reason": str(reason)[:_MAX_REASON]})


def request_stop(reason: str) -> bool:
    """Ask the agent to end the job without a restart. From any thread; True when the agent was told."""
    return _CLIENT.tell(_REQUEST, {"what": "stop", "reason": str(reason)[:_MAX_REASON]})


def should_save() -> bool:
    """Whether the job was asked to end (preemption) and this is the moment to write a checkpoint and leave.

    Poll it once per step: 0.2 µs. A script that does so, and has no handler of its own for the signal, gets no signal:
    it sees True here, saves, and exits; all within ``--shutdown-timeout``. Stays True once it is.
    """
    _CLIENT.polls_save()
    return _flags.is_set(_flags.SAVE_NOW)


def checkpoint_saved(step: int | None = None, path: str | os.PathLike[str] = "") -> None:
    """Say that a checkpoint is complete, where no hook sees it: not written with torch.save or torch DCP."""
    known = step if isinstance(step, int) else _CLIENT.step
    _CLIENT.tell(_CHECKPOINT, {"source": "script", "path": os.fspath(path)[:_MAX_PATH], "step": known})


def restart_count() -> int:
    """How many restarts this job had before this generation: 0 in the first, and without an agent."""
    return _number("TORCHELASTIC_RESTART_COUNT") or 0


def resume_path() -> str | None:
    """The checkpoint that the agents chose for this generation; None when there is none, or no agent."""
    return os.environ.get("FTLAUNCH_RESUME_FROM") or None


def resume_step() -> int | None:
    """The step of :func:`resume_path`, where it is known."""
    return _number("FTLAUNCH_RESUME_STEP")


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() else None
