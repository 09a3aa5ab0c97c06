"""Makes a process a rank: tied to its agent, heard by it, and then the user's program."""

from __future__ import annotations

import os
import sys
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found] # no enum this way

from ftlaunch.heartbeat import deathpipe, flags, hooks, modules, run_main, stackdump
from ftlaunch.heartbeat.client import CLIENT
from ftlaunch.heartbeat.descriptors import high_descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_KINDS = ("script", "module", "binary")
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


class Order:
    """What to run."""

    def __init__(self, kind: str, target: str, arguments: list[str]) -> None:
        self.kind = kind
        self.target = target
        self.arguments = arguments


class Ties:
    """What the agent passed for this process alone; taken out of the environment, so no child sees it."""

    def __init__(
        self, death_fd: int | None, dump_fd: int | None, flags_fd: int | None, agent_pid: int | None, affinity: str
    ) -> None:
        self.death_fd = death_fd
        self.dump_fd = dump_fd
        self.flags_fd = flags_fd
        self.agent_pid = agent_pid
        self.affinity = affinity


def main() -> None:
    """Entry of ``bootstrap.py``."""
    if sys.argv[1:] == ["--standby"]:
        from ftlaunch.heartbeat import standby

        order = standby.wait_for_order()
    else:
        order = _parse(sys.argv[1:])
        ties = take_ties()
        tie(ties, through_exec=order.kind == "binary")
        if order.kind != "binary":
            hooks.install()
    become_rank(order)


def take_ties() -> Ties:
    """Take the private variables out of the environment."""
    taken = os.environ.pop
    return Ties(
        _descriptor(taken("FTLAUNCH_DEATH_FD", "")),
        _descriptor(taken("FTLAUNCH_DUMP_FD", "")),
        _descriptor(taken("FTLAUNCH_FLAGS_FD", "")),
        _descriptor(taken("FTLAUNCH_AGENT_PID", "")),
        taken("FTLAUNCH_AFFINITY", ""),
    )


def tie(ties: Ties, *, through_exec: bool = False) -> None:
    """Arm the death pipe and the stack dump, and bind to the CPUs. Kills the process if the agent is gone."""
    ties.death_fd = deathpipe.arm(ties.death_fd, ties.agent_pid, through_exec=through_exec)
    if ties.dump_fd is not None and not through_exec:
        ties.dump_fd = high_descriptor(ties.dump_fd)
        stackdump.register(ties.dump_fd)
    if ties.flags_fd is not None and not through_exec:
        ties.flags_fd = high_descriptor(ties.flags_fd)
        flags.attach(ties.flags_fd)
    bind(ties.affinity)


def bind(affinity: str) -> None:
    """Bind to a comma list of CPUs. One line on stderr when that is refused."""
    if not affinity:
        return
    try:
        os.sched_setaffinity(0, [int(cpu) for cpu in affinity.split(",")])
    except (OSError, ValueError, OverflowError) as error:
        print(f"ftlaunch: cannot bind this rank to CPUs {affinity}: {error}", file=sys.stderr)


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


def _descriptor(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
