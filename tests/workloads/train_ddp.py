"""The reference workload of tests and bench: a small DDP job that hurts itself on time, under any launcher.

It imports nothing of ftlaunch. Every rank appends JSON lines to ``$DRILL_OUT/rank<R>.jsonl``, each with ``event``,
``t`` (CLOCK_MONOTONIC seconds, so comparable within one machine), ``pid`` and ``life`` (processes of this rank so far):

* ``start``: ready to step; ``t_first`` is the script's first line, ``t_import`` is after the imports, ``step`` is where
  it goes on
* ``step``: an optimizer step is done
* ``fault``: this rank is about to hurt itself
* ``done``: all steps are done

Settings, all by environment variable:

* ``DRILL_OUT``: directory for events and checkpoints (required)
* ``DRILL_STEPS`` (400), ``DRILL_STEP_S`` (0.02: what a step sleeps), ``DRILL_WIDTH`` (64: how much it computes),
  ``DRILL_CKPT_EVERY`` (50)
* ``DRILL_FAULTS``: ``STEP:KIND,...``; each is taken once, by the last rank. Kinds: ``kill`` (SIGKILL to itself),
  ``raise``, ``stop`` (SIGSTOP to itself), ``spin`` (endless loop), ``freeze`` (SIGSTOP to rank 0, then SIGKILL to
  itself)
* ``DRILL_STUBBORN=1``: the other ranks ignore SIGTERM by a handler, and hang instead of failing when a peer is lost
* ``DRILL_WARMUP`` (0): the first step of the first life takes this many seconds
* ``DRILL_DEVICE`` (cpu): ``cuda`` trains on the first GPU, which all ranks share; ``DRILL_GPU_GIB`` (0): how much of
  its memory each rank holds beside the model; ``DRILL_BACKEND`` (gloo): ``nccl`` takes a GPU for each rank
"""

import time

T_FIRST = time.monotonic()

import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

T_IMPORT = time.monotonic()

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
OUT = Path(os.environ["DRILL_OUT"])
STEPS = int(os.environ.get("DRILL_STEPS", "400"))
STEP_S = float(os.environ.get("DRILL_STEP_S", "0.02"))
WIDTH = int(os.environ.get("DRILL_WIDTH", "64"))
CHECKPOINT_EVERY = int(os.environ.get("DRILL_CKPT_EVERY", "50"))
STUBBORN = os.environ.get("DRILL_STUBBORN") == "1"
DEVICE = os.environ.get("DRILL_DEVICE", "cpu")
GPU_GIB = float(os.environ.get("DRILL_GPU_GIB", "0"))
CHECKPOINT = OUT / "checkpoint.pt"


class Journal:
    """Appends events; one write per line, so that a killed rank leaves whole lines."""

    def __init__(self):
        path = OUT / f"rank{RANK}.jsonl"
        lives = path.read_text().count('"start"') if path.exists() else 0
        self.life = lives
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event, **fields):
        line = {"event": event, "t": time.monotonic(), "pid": os.getpid(), "life": self.life, **fields}
        os.write(self.fd, json.dumps(line).encode() + b"\n")


def planned_faults():
    """Return {step: kind} from DRILL_FAULTS."""
    entries = filter(None, os.environ.get("DRILL_FAULTS", "").split(","))
    return {int(step): kind for step, kind in (entry.split(":") for entry in entries)}


def hurt(kind, step):
    """Do to this rank what the plan says. Returns from ``stop`` only after SIGCONT."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "freeze":
        first = json.loads((OUT / "rank0.jsonl").read_text().splitlines()[-1])
        os.kill(first["pid"], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "spin":
        while True:
            pass
    else:
        raise RuntimeError(f"planned fault {kind!r} at step {step}")


def save(model, step):
    """Write the checkpoint beside its place, then move it there: it is always a whole one."""
    part = CHECKPOINT.with_suffix(".part")
    torch.save({"step": step, "model": model.module.state_dict()}, part)
    os.replace(part, CHECKPOINT)


def train(journal):
    """Run to the last step, from the checkpoint if there is one."""
    ballast = torch.ones(int(GPU_GIB * 2**28), device=DEVICE)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location=DEVICE)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    faults = planned_faults()
    journal.write("start", t_first=T_FIRST, t_import=T_IMPORT, step=step, world=WORLD)
    pause = float(os.environ.get("DRILL_WARMUP", "0")) if journal.life == 0 else 0.0
    while step < STEPS:
        time.sleep(STEP_S + pause)
        pause = 0.0
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH, device=DEVICE)).square().mean().backward()
        optimizer.step()
        step += 1
        journal.write("step", step=step)
        if step % CHECKPOINT_EVERY == 0:
            if RANK == 0:
                save(model, step)
            dist.barrier()
        taken = OUT / f"taken-{step}"
        if step in faults and RANK == WORLD - 1 and not taken.exists():
            taken.touch()
            journal.write("fault", step=step, kind=faults[step])
            hurt(faults[step], step)
    del ballast
    journal.write("done", step=step)


def main():
    """Join the others, train, leave."""
    bystander = STUBBORN and RANK != WORLD - 1
    if bystander:
        signal.signal(signal.SIGTERM, lambda signum, frame: None)
    dist.init_process_group(os.environ.get("DRILL_BACKEND", "gloo"))
    journal = Journal()
    try:
        train(journal)
    except RuntimeError:
        while bystander:
            signal.pause()
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
