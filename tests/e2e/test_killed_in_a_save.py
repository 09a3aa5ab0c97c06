"""Real frameworks whose ranks die in the middle of a save: the next generation goes on from the complete one before.

Each rank is killed inside the system call that writes or renames, at a byte that the seed chooses (SAVE_SEED). The
first cut hits ranks that were started cold, the second one a rank that came from a standby.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from support import procfs
from support.cuts import Cut, Cuts
from support.jobs import Job, Launcher
from support.waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WORKLOADS = Path(__file__).parent.parent / "workloads"
EVERY = 3
PATIENCE_S = 200.0
UNFINISHED = "has no .metadata: the save did not finish"


@dataclass(frozen=True)
class Kill:
    """One cut, and what must follow: the step to go on after, and why the damaged one is not taken (a regex)."""

    cut: Cut
    resumes_after: int
    damaged: str = ""
    reason: str = ""


@dataclass
class Story:
    """What a job wrote down."""

    job: Job
    folder: Path
    lives: list[dict[str, Any]] = field(default_factory=list)

    def of(self, generation: int, what: str) -> list[Any]:
        """What the script noted in one of its lives."""
        return [line[what] for line in self.lives if line["generation"] == generation and what in line]

    def digest(self) -> str:
        """Of the final parameters."""
        return str(self.lives[-1]["digest"])

    def told(self, event: str, *fields: str) -> list[Any]:
        """Fields of all events of one kind."""
        found = [tuple(each[name] for name in fields) for each in self.job.events(event)]
        return [each[0] for each in found] if len(fields) == 1 else found


class Stage:
    """Where jobs of one script run, undisturbed and with cuts."""

    def __init__(self, ftlaunch: Launcher, folder: Path, steps: int, *script: str) -> None:
        self._ftlaunch = ftlaunch
        self._folder = folder
        self._script = (WORKLOADS / script[0], *script[1:])
        self.steps = steps
        self.dice = random.Random(int(os.environ.get("SAVE_SEED", "20261129")))

    def start(self, name: str, environment: Mapping[str, str]) -> Story:
        """Start a job of two ranks that saves below ``name``."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        settings = {
            "LIVES_OUT": str(folder),
            "LIVES_STEPS": str(self.steps),
            "LIVES_EVERY": str(EVERY),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        job = self._ftlaunch(
            *("--nproc-per-node", "2", "--checkpoint-dir", folder / "saved", *self._script),
            env={**settings, **environment},
        )
        return Story(job, folder)

    def undisturbed(self) -> Story:
        """The whole job in one life."""
        story = self.start("undisturbed", {})
        finish(story)
        assert story.of(0, "made") == list(range(1, self.steps + 1))
        return story

    def byte_of(self, story: Story, name: str) -> int:
        """A byte of a file that the undisturbed job saved, by the dice."""
        return self.dice.randrange(1, (story.folder / "saved" / name).stat().st_size)


def finish(story: Story) -> None:
    assert story.job.wait(2 * PATIENCE_S) == 0, story.job.err[-3000:]
    story.lives = [json.loads(line) for line in (story.folder / "lives.jsonl").read_text().splitlines()]


def shown(job: Job, rank: int) -> dict[str, Any]:
    """What ``ftctl status`` shows of one rank."""
    command = (sys.executable, "-m", "ftlaunch.launcher.ftctl", "status", "--json", "--run", str(job.run_dir))
    shape = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)
    return next(each for each in shape["ranks"] if each["rank"] == rank)


def check_lives(story: Story, stage: Stage, kills: Sequence[Kill]) -> None:
    """Every generation goes on where it should, damaged checkpoints are named, and nothing of it changes the result."""
    afters = [0, *(kill.resumes_after for kill in kills)]
    generations = range(len(afters))
    assert [story.of(number, "begin") for number in generations] == [[after] for after in afters]
    resumed = story.told("rendezvous_completed", "resume_step")
    assert resumed == [after or None for after in afters], story.job.err[-3000:]
    assert [story.of(number, "resume_step") for number in generations] == [[after or None] for after in afters]
    assert story.told("training_resumed", "generation") == list(generations)
    reasons = [reason.removeprefix(f"skipped {story.folder / 'saved'}/") for reason in skipped(story)]
    expected = [f"{kill.damaged}: {kill.reason}" for kill in kills if kill.damaged]
    assert len(reasons) == len(expected), reasons
    for reason, pattern in zip(reasons, expected, strict=True):
        assert re.fullmatch(pattern, reason), (reason, pattern)
    assert story.of(generations[-1], "end") == [stage.steps]


def skipped(story: Story) -> list[str]:
    return list(story.told("checkpoint_skipped", "reason"))


def check_cut_off(story: Story, generation: int, cut: Cut) -> None:
    """The file was left with just as many bytes as the cut says: what the next generation found on disk."""
    ((files),) = story.of(generation, "files")
    assert cut.offset in [size for name, size in files.items() if fnmatch(f"/{name}", cut.pattern)]


def check_steps_heard(story: Story) -> None:
    """Optimizer steps of every generation were noticed, and nothing else was taken for one."""
    counted: dict[int, int] = {}
    for generation, ticks in story.told("progress", "generation", "ticks"):
        counted[generation] = max(ticks, counted.get(generation, 0))
    assert list(counted) == list(range(len(story.told("workers_started", "warm"))))
    for generation, ticks in counted.items():
        # The last ones of a life may find the agent's queue full: they are sent without waiting.
        assert 1 <= ticks <= len(story.of(generation, "made")), (generation, counted)


def disturbed(stage: Stage, kills: Sequence[Kill], environment: Mapping[str, str] | None = None) -> Story:
    """Run with all cuts; the first two are held, the first until there is a standby for rank 0."""
    cuts = Cuts(stage._folder / "cuts", [kill.cut for kill in kills])
    story = stage.start("disturbed", {**(environment or {}), **cuts.environment})
    for number in range(2):
        wait_until(lambda number=number: cuts.begun(number) or story.job.process.poll() is not None, PATIENCE_S)
        assert cuts.begun(number), story.job.err[-3000:]
        found = shown(story.job, kills[number].cut.rank)
        assert set(found["sections"]) == {"checkpoint"}, found  # the framework's own and what it calls
        if number == 0:
            wait_until(lambda: story.job.events("standby_ready"), PATIENCE_S, "a standby")
        cuts.release(number)
    finish(story)
    assert [cuts.begun(number) for number in range(len(kills))] == [True] * len(kills)
    assert [warm > 0 for warm in story.told("workers_started", "warm")[:2]] == [False, True]
    return story


def test_hugging_face_trainer(ftlaunch: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    stage = Stage(ftlaunch, tmp_path, 15, "save_trainer.py")
    whole = stage.undisturbed()
    byte = {
        name: stage.byte_of(whole, f"checkpoint-15/{name}")
        for name in ("model.safetensors", "optimizer.pt", "rng_state_1.pth", "trainer_state.json")
    }
    no_state = "has no trainer_state.json: the save did not finish"
    kills = (
        # safetensors writes beside the file and renames; the Trainer's other files are written in place.
        Kill(Cut(0, "*/checkpoint-6/.tmp*", byte["model.safetensors"], hold=True), 3, "checkpoint-6", no_state),
        Kill(Cut(0, "*/checkpoint-9/optimizer.pt", byte["optimizer.pt"], hold=True), 6, "checkpoint-9", no_state),
        Kill(
            *(Cut(1, "*/checkpoint-12/rng_state_1.pth", byte["rng_state_1.pth"]), 9, "checkpoint-12"),
            f"({no_state}|rng_state_1.pth: cut off.*)",  # rank 0 may be done, and is not waited for
        ),
        Kill(
            *(Cut(0, "*/checkpoint-15/trainer_state.json", byte["trainer_state.json"]), 12, "checkpoint-15"),
            "trainer_state.json is not valid JSON: cut off.",
        ),
    )
    story = disturbed(stage, kills)
    check_lives(story, stage, kills)
    for generation in (2, 3, 4):
        check_cut_off(story, generation, kills[generation - 1].cut)
    check_steps_heard(story)
    assert story.digest() == whole.digest()
    # One checkpoint is told once, when it is whole, with the Trainer's own step.
    saves = [(0, 3), (1, 6), (2, 9), (3, 12), (4, 15)]
    told = story.told("checkpoint_saved", "generation", "step", "source", "path")
    told = [each for each in told if each[:2] != (2, 12)]  # rank 0 may be done with it before rank 1 is killed
    paths = [str(story.folder / "saved" / f"checkpoint-{step}") for _, step in saves]
    assert told == [(*save, "transformers", path) for save, path in zip(saves, paths, strict=True)]


@pytest.fixture
def other_device(tmp_path: Path) -> Iterator[Path]:
    """A directory for temporary files on another file system: what is written there is copied, not renamed."""
    with tempfile.TemporaryDirectory(prefix="ft-saves-", dir="/dev/shm") as name:
        if os.stat(name).st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is on the same file system as the test")
        yield Path(name)


def test_lightning(ftlaunch: Launcher, tmp_path: Path, other_device: Path) -> None:
    pytest.importorskip("lightning")
    stage = Stage(ftlaunch, tmp_path, 12, "save_lightning.py")
    whole = stage.undisturbed()
    name = "epoch=0-step={}.ckpt"
    byte = stage.byte_of(whole, name.format(12))
    kills = (
        # Written as a whole, not yet in its place: nothing to be seen there.
        Kill(Cut(0, f"*/{name.format(6)}", None, hold=True), 3),
        Kill(Cut(0, f"*/{name.format(9)}", byte, hold=True), 6, name.format(9), "cut off or damaged: .*"),
        # The second copy, under the name of the newest one, is cut off; the numbered one of that step is whole.
        # (Lightning makes it last-v1.ckpt where it does not know the one that is there.)
        Kill(Cut(0, "*/last*.ckpt", byte), 9, r"last(-v\d)?.ckpt", "cut off or damaged: .*"),
    )
    story = disturbed(stage, kills, {"TMPDIR": str(other_device)})
    check_lives(story, stage, kills)
    for generation in (2, 3):
        check_cut_off(story, generation, kills[generation - 1].cut)
    check_steps_heard(story)
    assert story.digest() == whole.digest()
    told = story.told("checkpoint_saved", "generation", "step", "source", "path")
    assert [step for generation, step, _, _ in told if generation == 1] == [6, 6]
    assert {source for _, _, source, _ in told} == {"lightning"}


def test_fsdp_with_distributed_checkpoint(ftlaunch: Launcher, tmp_path: Path) -> None:
    stage = Stage(ftlaunch, tmp_path, 12, "save_dcp.py", "sync")
    whole = stage.undisturbed()
    shard, metadata = (stage.byte_of(whole, f"step-12/{name}") for name in ("__1_0.distcp", ".metadata"))
    interrupted = "has a .metadata.tmp: a save was interrupted"
    kills = (
        Kill(Cut(1, "*/step-6/__1_0.distcp", shard, hold=True), 3, "step-6", UNFINISHED),
        Kill(Cut(0, "*/step-6/.metadata.tmp", metadata, hold=True), 3, "step-6", interrupted),
        Kill(Cut(0, "*/step-9/.metadata", None), 6, "step-9", interrupted),
    )
    story = disturbed(stage, kills)
    check_lives(story, stage, kills)
    for generation in (1, 2):
        check_cut_off(story, generation, kills[generation - 1].cut)
    check_steps_heard(story)
    assert story.digest() == whole.digest()


def held_beside_training(stage: Stage, kills: Sequence[Kill]) -> tuple[Story, Cuts]:
    """A job whose save of step 6 is held at the first cut: its steps go on and are heard, and no section stays open."""
    cuts = Cuts(stage._folder / "cuts", [kill.cut for kill in kills])
    story = stage.start("disturbed", cuts.environment)
    wait_until(lambda: cuts.begun(0), PATIENCE_S, "the first cut")
    # The next save waits for the one that is held, after step 9.
    wait_until(lambda: '"made": 9' in (story.folder / "lives.jsonl").read_text(), PATIENCE_S, "nine steps")
    wait_until(lambda: shown(story.job, 0)["ticks"] > 6, PATIENCE_S, "a step heard after the cut")
    assert [shown(story.job, rank)["sections"] for rank in range(2)] == [[], []]
    return story, cuts


def test_asynchronous_save_in_a_thread(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Training goes on while the save runs, its steps are heard, and no section stays open."""
    stage = Stage(ftlaunch, tmp_path, 12, "save_dcp.py", "thread")
    whole = stage.undisturbed()
    once_per_rank = [f"step-{step}" for step in (3, 6, 9, 12) for _ in range(2)]
    assert paths_saved(whole, 0) == once_per_rank
    shard = stage.byte_of(whole, "step-12/__1_0.distcp")
    kills = (Kill(Cut(1, "*/step-6/__1_0.distcp", shard, hold=True), 3, "step-6", UNFINISHED),)
    story, cuts = held_beside_training(stage, kills)
    cuts.release(0)
    finish(story)
    check_lives(story, stage, kills)
    check_cut_off(story, 1, kills[0].cut)
    check_steps_heard(story)
    assert story.digest() == whole.digest()


def paths_saved(story: Story, generation: int) -> list[str]:
    saved = story.told("checkpoint_saved", "generation", "path")
    return sorted((Path(path).name for number, path in saved if number == generation), key=lambda name: int(name[5:]))


def test_asynchronous_save_in_a_process(ftlaunch: Launcher, tmp_path: Path) -> None:
    """The process that saves for a rank never speaks for it and never outlives it; its own death is one of a save."""
    stage = Stage(ftlaunch, tmp_path, 12, "save_dcp.py", "process")
    whole = stage.undisturbed()
    shard, metadata = (stage.byte_of(whole, f"step-12/{name}") for name in ("__1_0.distcp", ".metadata"))
    kills = (
        Kill(Cut(1, "*/step-6/__1_0.distcp", shard, hold=True, whom="parent"), 3, "step-6", UNFINISHED),
        Kill(Cut(0, "*/step-9/.metadata.tmp", metadata), 6, "step-9", "has a .metadata.tmp: a save was interrupted"),
    )
    story, cuts = held_beside_training(stage, kills)
    ranks = story.told("workers_started", "pids")[0]
    savers = procfs.descendants(ranks) - set(ranks)
    assert len(savers) >= 2
    cuts.release(0)
    wait_until(lambda: len(story.job.events("workers_started")) == 2, PATIENCE_S, "the next generation")
    assert not any(map(procfs.alive, savers))
    finish(story)
    check_lives(story, stage, kills)
    for generation in (1, 2):
        check_cut_off(story, generation, kills[generation - 1].cut)
    check_steps_heard(story)
    assert story.digest() == whole.digest()


def test_a_whole_checkpoint_that_cannot_be_loaded(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Sizes are right and the content is not. The empty step that makes the optimizer's state is no sign of life."""
    stage = Stage(ftlaunch, tmp_path, 6, "save_dcp.py", "sync")
    first = stage.undisturbed()
    shard = first.folder / "saved" / "step-6" / "__0_0.distcp"
    shard.write_bytes(bytes(shard.stat().st_size))
    (first.folder / "lives.jsonl").unlink()
    stage.steps = 9
    second = stage.start("undisturbed", {})
    finish(second)
    assert second.told("rendezvous_completed", "resume_step") == [6, 3]
    assert second.told("training_resumed", "generation") == [1]
    assert second.of(1, "made") == list(range(4, 10))
