"""From an agreed world to what each rank of this node executes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ftlaunch.heartbeat
from ftlaunch.launcher.config import CommandConfig, Config
from ftlaunch.launcher.decision.resume_point import resume_path, resume_step
from ftlaunch.launcher.output.files import LogLayout
from ftlaunch.launcher.ranks.environment import worker_environment
from ftlaunch.launcher.ranks.wires import Wires
from ftlaunch.rendezvous.interface import World

BOOTSTRAP = str(Path(ftlaunch.heartbeat.__file__).with_name("bootstrap.py"))

BEAT_INTERVAL_MS = "100"
"""Progress more often than this need not be told. A drill that acts at an exact step sets the variable to 0."""


@dataclass(frozen=True)
class Rank:
    """One place in a generation: what a worker becomes."""

    generation: int
    rank: int
    local_rank: int
    argv: Sequence[str]
    command: Sequence[str]
    """The end of ``argv``: kind, target and arguments."""
    environment: Mapping[str, str]
    pass_fds: tuple[int, ...] = ()


class Plan:
    """Knows everything about a rank that does not change from one generation to the next."""

    def __init__(
        self, config: Config, wires: Wires, affinity: Sequence[frozenset[int] | None], layout: LogLayout
    ) -> None:
        self._config = config
        self._wires = wires
        self._affinity = affinity
        self._layout = layout

    def ranks(self, world: World) -> list[Rank]:
        """All ranks of this node, by local rank."""
        return [self._rank(world, local_rank) for local_rank in range(self._config.workers.nproc)]

    def command(self, local_rank: int, resume: str | None = None) -> tuple[str, ...]:
        """Kind, target and arguments for the bootstrap, with placeholders replaced."""
        command = self._config.command
        args = (_substitute(argument, local_rank, resume) for argument in command.args)
        return (command.kind.value, command.target, *args)

    def private_environment(self, local_rank: int) -> dict[str, str]:
        """What only the bootstrap may see; it takes these out before the script runs."""
        affinity = self._affinity[local_rank]
        return {
            "FTLAUNCH_AGENT_PID": str(os.getpid()),
            "FTLAUNCH_DEATH_FD": str(self._wires.lifeline.read_fd),
            "FTLAUNCH_DUMP_FD": str(self._wires.dumps.fds[local_rank]),
            "FTLAUNCH_FLAGS_FD": str(self._wires.flags.read_fd),
            **({"FTLAUNCH_AFFINITY": ",".join(map(str, sorted(affinity)))} if affinity else {}),
        }

    def pass_fds(self, local_rank: int) -> tuple[int, ...]:
        """Descriptors that :meth:`private_environment` speaks of."""
        return (self._wires.lifeline.read_fd, self._wires.dumps.fds[local_rank], self._wires.flags.read_fd)

    def _rank(self, world: World, local_rank: int) -> Rank:
        # With a fresh start, too, where the script expects a value: it then finds none.
        resume = resume_path(world) or (None if world.shared.get("resume_from") is None else "")
        command = self.command(local_rank, resume)
        return Rank(
            generation=world.generation,
            rank=world.rank_offset + local_rank,
            local_rank=local_rank,
            argv=(*interpreter_argv(self._config.command), *command),
            command=command,
            environment=self._environment(world, local_rank),
            pass_fds=self.pass_fds(local_rank),
        )

    def _environment(self, world: World, local_rank: int) -> Mapping[str, str]:
        error_file = self._layout.error_file(world.generation, world.rank_offset + local_rank, local_rank)
        extra = {
            "FTLAUNCH_SOCKET": self._wires.socket_path,
            "FTLAUNCH_MARK": self._wires.marker,
            "FTLAUNCH_BEAT_INTERVAL_MS": self._config.environment.get("FTLAUNCH_BEAT_INTERVAL_MS", BEAT_INTERVAL_MS),
            "TORCHELASTIC_ERROR_FILE": str(error_file or ""),
            **self.private_environment(local_rank),
        }
        resume = resume_path(world)
        if resume is not None:
            extra["FTLAUNCH_RESUME_FROM"] = resume
        step = resume_step(world)
        if step is not None:
            extra["FTLAUNCH_RESUME_STEP"] = str(step)
        return worker_environment(self._config, world, local_rank, extra=extra)


def interpreter_argv(command: CommandConfig) -> tuple[str, ...]:
    """The interpreter with the bootstrap, for cold starts and standbys alike."""
    return (command.interpreter, *command.interpreter_args, BOOTSTRAP)


def _substitute(argument: str, local_rank: int, resume: str | None) -> str:
    argument = argument.replace("${local_rank}", str(local_rank))
    # Only where there is something to put in: without --checkpoint-dir the text is the script's own.
    return argument if resume is None else argument.replace("{resume}", resume)
