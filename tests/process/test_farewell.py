"""The end of a rank that has failed."""

from __future__ import annotations

from pathlib import Path

from cases.training import HEAD
from support.jobs import Launcher

FAILS = """
class Touchy:
    @property
    def __class__(self): say("touched"); return Touchy
touchy = Touchy()
file = open(sys.argv[1], "w")
file.write("not flushed yet")
raise ValueError("over")
"""


def test_files_are_flushed_and_no_other_object_is_asked_what_it_is(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Objects of torch warn when they are."""
    script = tmp_path / "train.py"
    script.write_text(HEAD + FAILS)
    job = ftlaunch(script, tmp_path / "file")
    assert job.wait(30) == 1
    assert (tmp_path / "file").read_text() == "not flushed yet"
    assert "touched" not in job.out
