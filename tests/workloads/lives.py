"""What the workloads that are killed in the middle of a save write down about each of their lives, by rank 0.

``lives.jsonl`` in the folder of the job: one line at the start of every life, one per step, one at the end of the last.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch

out = Path(os.environ["LIVES_OUT"])
saved = out / "saved"
steps, every = int(os.environ["LIVES_STEPS"]), int(os.environ["LIVES_EVERY"])
resume_from = os.environ.get("FTLAUNCH_RESUME_FROM") or None


def begin(step: int) -> None:
    """The script goes on after ``step``. What is on disk is noted too."""
    files = {str(path.relative_to(saved)): path.stat().st_size for path in saved.rglob("*") if path.is_file()}
    told = os.environ.get("FTLAUNCH_RESUME_STEP")
    _write(begin=step, resume_from=resume_from, resume_step=told and int(told), files=files)


def made(step: int) -> None:
    """One step is done."""
    _write(made=step)


def end(step: int, parameters: Iterable[torch.Tensor]) -> None:
    """Training is over; a digest of the final parameters, which are given on every rank."""
    digest = hashlib.sha256()
    for tensor in parameters:
        digest.update(tensor.detach().numpy().tobytes())
    _write(end=step, digest=digest.hexdigest())
    # Who closes its connections while another one still reads the last collective from them makes that one fail.
    ended = f"ended-{os.environ['FTLAUNCH_GENERATION']}"
    (out / f"{ended}-{os.environ['RANK']}").touch()
    while len(list(out.glob(f"{ended}-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


def _write(**facts: object) -> None:
    if os.environ["RANK"] == "0":
        with open(out / "lives.jsonl", "a") as stream:
            stream.write(json.dumps({"generation": int(os.environ["FTLAUNCH_GENERATION"]), **facts}) + "\n")
