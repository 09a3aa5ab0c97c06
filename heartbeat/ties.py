"""What ties a process to its agent: it dies with it, shows it its stacks, reads its flags, and stays on its CPUs."""

from __future__ import annotations

import os
import sys

from ftlaunch.heartbeat import deathpipe, flags, stackdump
from ftlaunch.heartbeat.descriptors import high_descriptor


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


def take() -> Ties:
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


def _descriptor(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
