"""A signal that means preemption, at an awkward moment."""

from __future__ import annotations

from pathlib import Path

from cases.training import HEAD
from support.jobs import Launcher

POLLS_AND_IS_CALLED = """
from ftlaunch import heartbeat as hb
for _ in range(20): hb.beat(); time.sleep(0.001)
hb.should_save()
os.kill(os.getppid(), signal.SIGUSR1)
while not hb.should_save(): time.sleep(0.01)
say("saved")
"""


def test_who_polls_is_not_killed_although_the_agent_has_not_read_of_it_yet(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Messages are read in batches, a signal comes between."""
    script = tmp_path / "train.py"
    script.write_text(HEAD + POLLS_AND_IS_CALLED)
    job = ftlaunch("--preempt-signal", "SIGUSR1", "--standby", "off", script)
    assert job.wait(30) == 138
    assert "saved" in job.out
