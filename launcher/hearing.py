"""The agent's ear: beats in, stalls and requests out as events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftlaunch.launcher import events as ev
from ftlaunch.launcher.config import HeartbeatConfig
from ftlaunch.launcher.crew import Crew, Post
from ftlaunch.launcher.plan import DumpFiles
from ftlaunch.launcher.process import WorkerProcess
from ftlaunch.launcher.say import Say
from ftlaunch.rendezvous.interface import World


class Hearing:
    def __init__(self, config: HeartbeatConfig, say: Say) -> None:
        self.runtime_dir = ""
        self.socket_path = ""

    def start(self, post: Post, crew: Crew) -> None: ...
    def close(self) -> None: ...
    def use_dumps(self, dumps: DumpFiles, add_evidence: Callable[[tuple[str, ...]], None]) -> None: ...
    def children_changed(self) -> None: ...
    def expect(self, world: World, workers: Sequence[WorkerProcess]) -> None: ...
    def listen(self) -> None: ...
    def progress(self) -> ev.Progress:
        return ev.Progress()
    def in_checkpoint(self, worker: WorkerProcess) -> bool:
        return False
    def has_last_words(self, worker: WorkerProcess) -> bool:
        return False
    async def collect_evidence(self) -> None: ...
