"""Reports of restarts that could not help, or that were counted wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jobs import Launcher
from support.scripts import TWO, write


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-restarts", "many"), "--max-restarts"),
        (("--no-such-option",), "unknown option"),
        (("--no-python",), "chmod +x"),
        (("--python", "/no/such/python"), "--python"),
    ],
)
def test_E2_what_cannot_start_is_one_line_and_2_before_any_rank(
    ftlaunch: Launcher, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    script = write(tmp_path, "say('ran')")
    job = ftlaunch("--max-restarts", "10", *options, script)
    assert job.wait(20) == 2
    assert said in job.err and len(job.err.splitlines()) == 1 and job.out == "" and job.events() == []


def test_E1_all_ranks_of_a_generation_see_the_same_count(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The first failure is now at one rank, now at the other; the budget is one for all."""
    body = """
say("count", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
if RANK == GEN % 2: os.kill(os.getpid(), 9)
signal.pause()
"""
    job = ftlaunch(*TWO, "--max-restarts", "2", "--run-dir", tmp_path / "run", write(tmp_path, body))
    assert job.wait(30) == 137
    # A rank may be killed before it has spoken.
    said = {line.split("count ")[1] for line in job.out.splitlines() if "count" in line}
    assert said == {"0 of 2", "1 of 2", "2 of 2"}
    assert "all 2 restarts are used up (--max-restarts 2)" in job.err
