"""A drill of a real DDP job: three faults, each detected, blamed on the right rank and recovered from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.jobs import Launcher

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_ddp_takes_three_faults(ftctl: Launcher) -> None:
    """The script tells no steps, so they are counted as its optimizer makes them, in each life anew."""
    faults = ("kill:rank=1,after_steps=12", "stop:rank=0,after_steps=8", "exception:rank=1,after_steps=15")
    job = ftctl(
        *("drill", "run", "--nproc-per-node", "2", *(word for fault in faults for word in ("--fault", fault))),
        *("--margin", "5s", "--recover", "60s", "--json", ROOT / "examples" / "train_ddp.py"),
        *("--checkpoint", "{out}/model.pt", "--steps", "60", "--save-every", "10", "--step-s", "0.01"),
    )
    assert job.wait(150) == 0, job.err
    shape = json.loads(job.out)
    assert [(fault["kind"], fault["ok"], fault["blamed"]) for fault in shape["faults"]] == [
        ("kill", True, 1),
        ("stop", True, 0),
        ("exception", True, 1),
    ]
    assert [fault["struck_at_step"] for fault in shape["faults"]] == [12, 8, 15]
    assert not shape["steps"]["known"] and shape["left_over"] == [] and shape["exit_codes"] == [0]
