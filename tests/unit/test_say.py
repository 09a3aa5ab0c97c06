"""The launcher's own lines."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch.launcher.output.console import Console
from ftlaunch.launcher.say import speak


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    fd = os.open(tmp_path / "console", os.O_WRONLY | os.O_CREAT, 0o600)
    yield Console(fd, fd)
    os.close(fd)
    logger = logging.getLogger("ftlaunch")
    logger.handlers.clear()
    logger.propagate = True


def test_lines_below_the_level_are_not_shown_but_notices_are(console: Console, tmp_path: Path) -> None:
    say = speak(console, "WARNING")
    say.debug("no")
    say.info("no")
    say.warning("careful")
    say.error("wrong")
    say.notice("restart\n2 of 3")
    logging.getLogger("ftlaunch.launcher.agent").info("no")
    logging.getLogger("ftlaunch.launcher.agent").warning("from %s", "a module")
    assert console.finish("the end")
    assert (tmp_path / "console").read_text().splitlines() == [
        *("[ftlaunch] careful", "[ftlaunch] wrong", "[ftlaunch] restart", "[ftlaunch] 2 of 3"),
        *("[ftlaunch] from a module", "the end"),
    ]


def test_an_own_line_does_not_go_into_a_ranks_line(console: Console, tmp_path: Path) -> None:
    say = speak(console, "WARNING")
    console.show(False, 0, b"[default0]:", [b"half a line"])
    say.notice("restart")
    console.show(False, 0, b"[default0]:", [b" and the rest\n"])
    console.finish()
    assert (tmp_path / "console").read_text().splitlines() == [
        *("[default0]:half a line", "[ftlaunch] restart", "[default0]: and the rest")
    ]


def test_speaking_twice_does_not_double_the_lines(console: Console, tmp_path: Path) -> None:
    speak(console, "WARNING")
    speak(console, "WARNING")
    logging.getLogger("ftlaunch").warning("once")
    console.finish()
    assert (tmp_path / "console").read_text() == "[ftlaunch] once\n"


def test_what_cannot_be_encoded_is_shown_escaped(console: Console, tmp_path: Path) -> None:
    speak(console, "WARNING").notice("file \udcff is gone")
    console.finish()
    assert (tmp_path / "console").read_text() == "[ftlaunch] file \\udcff is gone\n"


def test_missing_standard_descriptors_are_replaced() -> None:
    code = (
        "import os; os.close(1); os.close(2);"
        "from ftlaunch.launcher.output.console import ensure_standard_fds as ensure; ensure();"
        "assert [os.readlink(f'/proc/self/fd/{fd}') for fd in (1, 2)] == ['/dev/null'] * 2;"
        "os._exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 7
