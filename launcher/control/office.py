"""The parts of a job that requests of ``ftctl`` are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ftlaunch.heartbeat.watching.listener import Heard
    from ftlaunch.heartbeat.watching.verdicts import Progress
    from ftlaunch.heartbeat.watching.watch import Watch
    from ftlaunch.launcher.agent import Agent
    from ftlaunch.launcher.config import Config
    from ftlaunch.launcher.hearing.peers import Peers
    from ftlaunch.launcher.narrator import Narrator
    from ftlaunch.launcher.ranks.crew import Crew
    from ftlaunch.launcher.ranks.wires import DumpFiles


class Listening(Protocol):
    """What is known of the ranks from their beats."""

    on_message: Callable[[Heard], None] | None

    @property
    def watch(self) -> Watch:
        """All ranks of the generation, and how long they may be silent."""

    @property
    def tell(self) -> Callable[..., None]:
        """Writes an event of what is heard."""

    def progress(self) -> Progress:
        """How far the generation came."""


@dataclass(frozen=True)
class Office:
    """The parts of a job that requests are about. ``run`` is the run directory, empty for none."""

    agent: Agent
    crew: Crew
    ear: Listening
    narrator: Narrator
    config: Config
    dumps: DumpFiles
    run: str
    peers: Peers
