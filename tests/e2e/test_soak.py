"""A short soak, as part of every run: ``SOAK_SEED`` for other faults; the long one is ``./scripts/soak``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.jobs import Launcher
from support.needs import needs_etcd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_etcd,
]
MINUTES = "0.7"


def test_what_must_hold_holds_through_half_a_minute_of_chaos(tmp_path: Path) -> None:
    soak = Launcher("soak_lib")
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root / "scripts"), str(root / "tests")])
    seed, out = os.environ.get("SOAK_SEED", "20261129"), tmp_path / "soak"
    try:
        job = soak("--minutes", MINUTES, "--seed", seed, "--json", "--out", out, env={"PYTHONPATH": paths})
        code = job.wait(840)
        assert code == 0, job.err[-4000:]
        verdict = json.loads(job.out)
    finally:
        survivors = soak.close()
    assert not survivors, f"outlived the soak: {survivors}"
    assert verdict["ok"] and verdict["seed"] == int(seed) and verdict["faults"]
    (model,) = [check for check in verdict["checks"] if check["name"].startswith("the final model")]
    assert model["ok"]
