"""Makes a process a rank: tied to its agent, heard by it, and then the user's program."""

from __future__ import annotations

import os
import sys
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found] # no enum this way

from ftlaunch.heartbeat import hooks, modules, run_main, ties
from ftlaunch.heartbeat.client import CLIENT
from ftlaunch.heartbeat.order import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_KINDS = ("script", "module", "binary")
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def main() -> None:
    """Entry of ``bootstrap.py``."""
    if sys.argv[1:] == ["--standby"]:
        from ftlaunch.heartbeat.standbys import standby

        order = standby.wait_for_order()
    else:
        order = _parse(sys.argv[1:])
        ties.tie(ties.take(), through_exec=order.kind == "binary")
        if order.kind != "binary":
            hooks.install()
    become_rank(order)


def become_rank(order: Order) -> None:
    """Connect and run the program. Comes back when a script ended by itself; raises what it raised."""
    drills = os.environ.pop("FTLAUNCH_DRILLS", "")
    environment = dict(os.environ)
    if CLIENT.attach(environment):
        CLIENT.hello("start")
        if drills:
            from ftlaunch.heartbeat import drill

            drill.arm(drills, environment)
    CLIENT.on_first_beat = modules.Reporter(environment)
    CLIENT.hello("script")
    if order.kind == "binary":
        execute(order)
    run_main.pretend_command_line(order.kind, order.target, order.arguments)
    run_main.run(order.kind, order.target, order.arguments)


def execute(order: Order) -> NoReturn:
    """Become a program that is not Python; 127 when there is none, 126 when it cannot be executed (as a shell)."""
    for signum in (SIGPIPE, SIGXFSZ):
        # The interpreter ignores them, and an ignored signal would stay ignored through exec.
        signal(signum, SIG_DFL)
    try:
        os.execvp(order.target, [order.target, *order.arguments])
    except OSError as error:
        code = _NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else _NOT_EXECUTABLE
        print(f"ftlaunch: cannot execute {order.target!r}: {error.strerror}", file=sys.stderr)
    except ValueError as error:
        code = _NOT_EXECUTABLE
        print(f"ftlaunch: cannot execute {order.target!r}: {error}", file=sys.stderr)
    sys.exit(code)


def _parse(arguments: list[str]) -> Order:
    if len(arguments) < 2 or arguments[0] not in _KINDS:
        print("ftlaunch: bootstrap.py is started by the agent: KIND TARGET [ARGUMENT]...", file=sys.stderr)
        sys.exit(2)
    return Order(arguments[0], arguments[1], arguments[2:])
