"""When a node is found fit, and what is asked for it; no ranks, no GPUs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.launcher.config import CheckpointConfig, CommandConfig, CommandKind, Config, NodeConfig, WorkersConfig
from ftlaunch.launcher.decision import events as ev
from ftlaunch.launcher.decision.state import State
from ftlaunch.launcher.errors import NodeUnfit
from ftlaunch.launcher.evidence.inquiry import Inquiry
from ftlaunch.launcher.host import quick_look
from ftlaunch.launcher.node.keeper import NodeKeeper
from ftlaunch.launcher.node.node import Node
from ftlaunch.launcher.ranks.environment import node_environment

COMMAND = CommandConfig(CommandKind.SCRIPT, "train.py")
PLENTY = "MemTotal: 1000 kB\nMemAvailable: 900 kB\n"


@pytest.mark.parametrize(
    ("text", "clear"),
    [
        (PLENTY, True),
        ("MemTotal: 1000 kB\nMemAvailable: 90 kB\n", False),
        ("MemTotal: 1000 kB\n", False),
        ("MemTotal:\nMemAvailable: x\n", False),
        ("", False),
    ],
)
def test_memory_at_first_sight(tmp_path: Path, text: str, clear: bool) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(text)
    assert quick_look.is_clear([str(tmp_path)], 1, str(tmp_path), str(meminfo)) is clear


def test_disk_at_first_sight(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(PLENTY)
    look = (str(tmp_path), str(meminfo))
    assert not quick_look.is_clear([str(tmp_path)], 1 << 62, *look)
    assert not quick_look.is_clear([str(tmp_path / "missing")], 1, *look)
    assert not quick_look.is_clear([], 1, str(tmp_path / "missing"), str(meminfo))


def test_gpus_left_out_are_not_the_nodes() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2", "FTLAUNCH_MARK": "an outer run's", "X": "1"}
    config = Config(COMMAND, workers=WorkersConfig(gpus=("1",)), environment=environment)
    assert node_environment(config) == {"CUDA_VISIBLE_DEVICES": "1", "X": "1"}
    assert node_environment(Config(COMMAND, environment=environment))["CUDA_VISIBLE_DEVICES"] == "0,1,2"


class Agent:
    """As much of it as a node uses."""

    def __init__(self) -> None:
        self.state = State(slots=1)
        self.posted: list[ev.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    def post(self, event: ev.Event) -> None:
        self.posted.append(event)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]


class Nothing:
    """Facts of a job of which nothing is known."""

    def tail(self, generation: int, local_rank: int) -> list[bytes]:
        return []

    def ages(self, at: float) -> dict[int, float]:
        return {}

    def xids(self) -> list[Any]:
        return []

    def gpus(self) -> dict[int, str]:
        return {}

    def ended_by_guardian(self) -> bool:
        return False

    def warn(self, text: str) -> None:
        raise AssertionError(text)


class Told:
    """Collects events and answers checks as the test wants."""

    def __init__(self, config: Config) -> None:
        self.agent = Agent()
        self.events: list[tuple[str, str]] = []
        self.made = 0
        self.config = config
        self.node = Node(config, [], self.agent, self.make)  # type: ignore[arg-type]

    def make(self) -> NodeKeeper:
        self.made += 1
        keeper = NodeKeeper(self.config, "mark", self.node, self.agent, self.tell)  # type: ignore[arg-type]
        keeper.inquiry = Inquiry(Nothing())
        return keeper

    def tell(self, name: str, *, reason: str = "", **fields: Any) -> None:
        self.events.append((name, reason))

    async def end(self) -> None:
        for task in self.agent.tasks:
            task.cancel()
        await asyncio.gather(*self.agent.tasks, return_exceptions=True)
        await self.node.close(failed=False)


def environment(**more: str) -> dict[str, str]:
    """Without GPUs, wherever the test runs."""
    return {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin", **more}


def test_plain_node_is_found_fit_without_its_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftlaunch.launcher.node.node.is_clear", lambda paths, min_free: True)
    told = Told(Config(COMMAND, environment=environment()))
    assert asyncio.run(told.node.prepare(())) == {}
    assert told.made == 0


@pytest.mark.parametrize("what", ["check", "checkpoints", "room"])
def test_whatever_needs_a_closer_look_gets_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    monkeypatch.setattr("ftlaunch.launcher.node.node.is_clear", lambda paths, min_free: what != "room")
    config = Config(
        COMMAND,
        node=NodeConfig(health_check="true" if what == "check" else None),
        checkpoints=CheckpointConfig(directory=str(tmp_path) if what == "checkpoints" else None),
        environment=environment(),
    )
    told = Told(config)

    async def play() -> None:
        await told.node.prepare(())
        await told.end()

    asyncio.run(play())
    assert told.made == 1


def test_bad_answer_while_old_ranks_die_is_asked_again_when_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that is missing may be theirs."""
    told = Told(Config(COMMAND, environment=environment()))
    answers = ["memory: too little", ""]

    async def play() -> list[str]:
        keeper = told.node.keeper
        told.node.started(0, [4711])

        async def examine(gpus: object) -> str:
            return answers.pop(0)

        monkeypatch.setattr(keeper._checkup, "examine", examine)
        preparing = asyncio.ensure_future(told.node.prepare(()))
        while answers == ["memory: too little", ""]:
            await asyncio.sleep(0)
        assert not preparing.done() and answers == [""]
        assert await told.node.reclaim(0) == ev.Reclaimed(0)
        await preparing
        await told.end()
        return answers

    assert asyncio.run(play()) == []


def test_bad_answer_with_nothing_left_makes_the_node_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(Config(COMMAND, node=NodeConfig(health_check="echo no link; exit 4"), environment=environment()))

    async def play() -> None:
        try:
            await told.node.prepare(())
        finally:
            await told.end()

    with pytest.raises(NodeUnfit, match=r"^this node is unhealthy: health check: no link \(exit code 4\)$"):
        asyncio.run(play())


def test_health_check_that_cannot_be_run_is_told_and_not_held_against_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ftlaunch.launcher.errors import SpawnError

    async def refuse(*args: object, **kwargs: object) -> None:
        raise SpawnError("cannot start /bin/sh: Resource temporarily unavailable")

    monkeypatch.setattr("ftlaunch.launcher.health.command.check_command", refuse)
    told = Told(Config(COMMAND, node=NodeConfig(health_check="true"), environment=environment()))

    async def play() -> None:
        await told.node.prepare(())
        await told.end()

    asyncio.run(play())
    assert any("could not be run: cannot start /bin/sh" in reason for name, reason in told.events if name == "health")


def test_short_memory_while_ranks_run_is_told_once_and_no_reason_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    from ftlaunch.launcher.health import standard
    from ftlaunch.launcher.health.result import Unhealthy
    from ftlaunch.launcher.node.checkup import Checkup

    seconds = iter(("1", "2"))

    async def short() -> tuple[Unhealthy, ...]:
        return (Unhealthy("memory", f"everything waited for memory, {next(seconds)} MiB left"),)

    monkeypatch.setattr(standard, "_memory", short)
    monkeypatch.setattr("ftlaunch.launcher.node.checkup.is_clear", lambda paths, min_free: False)
    told: list[str] = []
    checkup = Checkup(NodeConfig(), [], [], {}, lambda name, *, reason, say: told.append(reason))

    async def play() -> list[str]:
        return [await checkup.glance(None) for _ in range(2)]

    assert asyncio.run(play()) == ["", ""]
    assert told == ["memory: everything waited for memory, 1 MiB left"]


def test_nothing_of_all_this_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, ftlaunch.launcher.cli.command_line, ftlaunch.launcher.job\n"
        "late = ('gpu', 'health', 'evidence', 'node_keeper', 'inquiry', 'shm', 'checkup', 'incident')\n"
        "print([name for name in late if f'ftlaunch.launcher.{name}' in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
