"""When a job gets its last line, and what that costs."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import cast

import pytest

from ftlaunch.launcher.config import CommandConfig, CommandKind, Config
from ftlaunch.launcher.journal.records import EventLog
from ftlaunch.launcher.output.console import Console
from ftlaunch.launcher.say import Say
from ftlaunch.launcher.views.live import Views


class Sink:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


Story = Sequence[tuple[int, str]]


def lines_of(story: Story, level: str = "WARNING") -> list[str]:
    """What is said after these generations; ``*`` is a beat, ``!`` a failure, ``~`` one with a later correction."""
    sink = Sink()
    events = EventLog(None, pytest.fail)
    views = Views(
        Config(CommandConfig(CommandKind.SCRIPT, "x")), events, Say(cast(Console, sink), getattr(logging, level))
    )

    async def work() -> None:
        await views.open()
        for generation, signs in story:
            events.write("rendezvous_completed", generation=generation, nodes=2, world_size=4, group_rank=0)
            events.write("workers_started", generation=generation, pids=[1, 2], warm=0)
            if "*" in signs:
                events.write("training_resumed", generation=generation)
            if "!" in signs:
                events.write("failure_detected", generation=generation, kind="signal", reason="killed by SIGKILL")
            if "~" in signs:
                events.write("failure_detected", generation=generation, kind="exception", reason="lost rank 1", rank=0)
                events.write(
                    "cause_corrected", generation=generation, kind="signal", reason="killed by SIGKILL", rank=1
                )
        events.write("job_finished", exit_code=0)
        views.conclude()
        views.close()
        events.write("later")

    asyncio.run(work())
    assert events.observers == []
    return sink.said


@pytest.mark.parametrize(
    ("story", "level", "said"),
    [
        ([], "WARNING", ""),
        ([], "INFO", ""),
        ([(0, "")], "WARNING", ""),
        ([(0, "*")], "WARNING", ""),
        ([(0, "*")], "INFO", "no restart, goodput "),
        ([(0, "")], "INFO", "no restart, goodput not known"),
        ([(0, "*!"), (1, "*")], "WARNING", "1 restart (SIGKILL)"),
        ([(0, "!"), (1, "")], "WARNING", "1 restart (SIGKILL)"),
        ([(0, "*~"), (1, "*")], "WARNING", "1 restart (SIGKILL)"),
        ([(0, "*!")], "WARNING", ""),
    ],
)
def test_the_last_line(story: Story, level: str, said: str) -> None:
    lines = lines_of(story, level)
    assert len(lines) == (1 if said else 0)
    assert not said or (said in lines[0] and lines[0].startswith("[ftlaunch] ran "))


def test_a_long_job_gets_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftlaunch.launcher.views.live._LONG_S", -1.0)
    assert len(lines_of([(0, "")])) == len(lines_of([(0, "*")])) == 1


def test_more_events_than_the_log_remembers_are_all_counted() -> None:
    (line,) = lines_of([(number, "!") for number in range(400)] + [(400, "")])
    assert "400 restarts (SIGKILL)" in line


def test_a_job_without_a_port_and_beats_loads_nothing() -> None:
    code = (
        "import sys, ftlaunch.launcher.job\n"
        "unwanted = ('prometheus_client', 'ftlaunch.launcher.history')\n"
        "assert not [name for name in sys.modules if name.startswith(unwanted)]\n"
        "views = {'ftlaunch.launcher.views.metrics', 'ftlaunch.launcher.views.tiny_http'}\n"
        "assert not {*views, 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
