"""Whatever happens on the way, the final model is bitwise that of an undisturbed run with the same seed.

Short here; EXACT_STEPS=2000 EXACT_FAULT_COUNT=20 ./scripts/test tests/e2e/test_exact_model.py is the long one. The seed
of the faults is printed and can be given as EXACT_SEED.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from support.jobs import Launcher

SCRIPT = Path(__file__).parent.parent / "workloads" / "train_exact.py"
STEPS = int(os.environ.get("EXACT_STEPS", "400"))
COUNT = int(os.environ.get("EXACT_FAULT_COUNT", "6"))
EVERY = 25
pytestmark = pytest.mark.timeout(120 + 30 * COUNT)
KINDS = ("kill", "raise", "stop", "exit", "truncate", "spin", "empty", "pointer")


def run(ftlaunch: Launcher, folder: Path, faults: str = "") -> tuple[str, int]:
    folder.mkdir()
    # Short only where a rank is to stall: a busy machine may hold up the others for as long.
    floor = ("--hang-floor", "3") if faults else ()
    job = ftlaunch(
        *("--nproc-per-node", "2", "--checkpoint-dir", folder / "checkpoints", *floor),
        *(SCRIPT, folder, STEPS, EVERY),
        env={"EXACT_FAULTS": faults, "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(60 + 20 * COUNT) == 0, job.err[-3000:]
    return (folder / "digest").read_text(), len(job.events("failure_detected"))


def plan(seed: int) -> str:
    """One fault in each equal part of the run, of every kind in turn."""
    dice = random.Random(seed)
    kinds = [KINDS[number % len(KINDS)] for number in range(COUNT)]
    dice.shuffle(kinds)
    part = STEPS // (COUNT + 1)
    steps = [part * (number + 1) + dice.randrange(part // 2) for number in range(COUNT)]
    return ",".join(f"{step}:{dice.randrange(2)}:{kind}" for step, kind in zip(steps, kinds, strict=True))


def test_final_model_is_the_same_bit_for_bit_after_faults_of_all_kinds(ftlaunch: Launcher, tmp_path: Path) -> None:
    seed = int(os.environ.get("EXACT_SEED", "20261129"))
    faults = plan(seed)
    print(f"seed {seed}: {faults}")
    undisturbed, none = run(ftlaunch, tmp_path / "undisturbed")
    disturbed, failures = run(ftlaunch, tmp_path / "disturbed", faults)
    assert (none, failures) == (0, COUNT)
    assert disturbed == undisturbed
    assert no_step_of_a_dead_generation(tmp_path / "disturbed")


def no_step_of_a_dead_generation(folder: Path) -> bool:
    """No rank makes a step of a generation once any rank has made one of a later generation."""
    lines = [json.loads(line) for path in folder.glob("steps-*.jsonl") for line in path.read_text().splitlines()]
    lines.sort(key=lambda line: line["at"])
    newest = 0
    for line in lines:
        if line["generation"] < newest:
            return False
        newest = line["generation"]
    return True
