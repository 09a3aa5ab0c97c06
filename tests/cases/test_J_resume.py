"""Reports of jobs that resumed from the wrong checkpoint."""

from __future__ import annotations

from pathlib import Path

from support.checkpoint_files import torch_file
from support.etcd import etcd
from support.jobs import Launcher
from support.needs import needs_etcd
from support.nodes import Nodes
from support.scripts import TWO, write


def test_J1_the_newest_complete_checkpoint_is_handed_to_all_ranks(ftlaunch: Launcher, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    for name in ("step_9", "step_10", "step_11", "tmp_12"):
        torch_file(saved / name / "state.pt")
    (saved / "step_11" / "state.pt").write_bytes(b"")
    before = sorted(saved.rglob("*"))
    body = "say(os.environ['FTLAUNCH_RESUME_STEP'], os.environ['FTLAUNCH_RESUME_FROM'], sys.argv[1])"
    job = ftlaunch(*TWO, "--checkpoint-dir", saved, write(tmp_path, body), "--from={resume}")
    assert job.wait() == 0
    chosen = saved / "step_10"
    assert sorted(job.out.splitlines()) == [f"[default{rank}]:10 {chosen} --from={chosen}" for rank in (0, 1)]
    (line,) = [line for line in job.err.splitlines() if "step_11" in line]
    assert "skipped" in line
    assert sorted(saved.rglob("*")) == before, "nothing is deleted"


def test_J1_steps_are_compared_as_numbers(ftlaunch: Launcher, tmp_path: Path) -> None:
    for step in (999, 1000):
        torch_file(tmp_path / "saved" / f"step_{step}.pt")
    job = ftlaunch("--checkpoint-dir", tmp_path / "saved", write(tmp_path, "say(os.environ['FTLAUNCH_RESUME_STEP'])"))
    assert job.wait() == 0 and job.out == "[default0]:1000\n"


def test_J1_after_a_death_before_the_first_step_the_one_before_is_tried(ftlaunch: Launcher, tmp_path: Path) -> None:
    """It may open as a whole and still not load."""
    for step in (5, 6):
        torch_file(tmp_path / "saved" / f"step_{step}.pt")
    body = "say('from', os.environ['FTLAUNCH_RESUME_STEP'])\nif GEN == 0: os._exit(1)"
    job = ftlaunch("--checkpoint-dir", tmp_path / "saved", write(tmp_path, body))
    assert job.wait(30) == 0
    assert job.out == "[default0]:from 6\n[default0]:from 5\n"


def test_J1_a_fresh_start_that_fails_is_not_blamed_on_a_checkpoint(ftlaunch: Launcher, tmp_path: Path) -> None:
    """There is none to fall back from: the failure before the first step is the script's own, with its own code."""
    body = "say(os.environ.get('FTLAUNCH_RESUME_FROM'), sys.argv[1:])\nos._exit(3)"
    job = ftlaunch("--checkpoint-dir", tmp_path / "saved", write(tmp_path, body), "--from={resume}")
    assert job.wait(30) == 3
    assert job.out == "[default0]:None ['--from=']\n"
    assert len(job.events("workers_started")) == 1 and "loading" not in job.err


@needs_etcd
def test_J3_all_nodes_resume_from_the_newest_step_that_each_of_them_has(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Each by the path that it has on that node."""
    script = write(tmp_path, "say(os.environ['FTLAUNCH_RESUME_STEP'], os.environ['FTLAUNCH_RESUME_FROM'])")
    for name, steps in (("a", (5, 6)), ("b", (5, 6, 7))):
        for step in steps:
            torch_file(tmp_path / name / f"step_{step}.pt")
    with etcd() as cluster:
        nodes = Nodes(ftlaunch, cluster.endpoints)
        local = ("--checkpoint-storage", "local", "--checkpoint-dir")
        jobs = [nodes("2", *local, tmp_path / name, script) for name in "ab"]
        assert [job.wait(40) for job in jobs] == [0, 0]
    for job, name in zip(jobs, "ab", strict=True):
        assert job.out.endswith(f":6 {tmp_path / name / 'step_6.pt'}\n")
