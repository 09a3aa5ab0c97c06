"""A DDP job whose every step depends on its number alone, so that any number of faults must end in the same model.

Resumes from FTLAUNCH_RESUME_FROM. Faults are taken once, by the rank and at the step that EXACT_FAULTS names:
``75:1:kill,120:0:raise``; kinds kill, raise, stop, spin, exit, oom (SIGKILL of itself after filling memory is left to
the kernel's own tests), truncate, empty, pointer (the newest checkpoint is damaged, then the rank is killed).

EXACT_STEP_S: so long a step pauses, after which a number in OUT/last takes the place of the number of steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ftlaunch import heartbeat

out = Path(sys.argv[1])
steps, every = int(sys.argv[2]), int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
generation = int(os.environ["FTLAUNCH_GENERATION"])
faults = {}
for entry in filter(None, os.environ.get("EXACT_FAULTS", "").split(",")):
    at, who, kind = entry.split(":")
    faults[int(at), int(who)] = kind
checkpoints = out / "checkpoints"
pause_s, last = float(os.environ.get("EXACT_STEP_S", "0")), out / "last"


def save(step: int) -> None:
    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    path = checkpoints / f"step_{step}.pt"
    torch.save(state, f"{path}.tmp")
    Path(f"{path}.tmp").replace(path)
    heartbeat.checkpoint_saved(step, path)


def damage(how: str) -> None:
    newest = max(checkpoints.glob("step_*.pt"), key=lambda path: int(path.stem[5:]), default=None)
    number = int(newest.stem[5:]) if newest is not None else 0
    if how == "truncate" and newest is not None:
        with open(newest, "r+b") as file:
            file.truncate(newest.stat().st_size // 2)
    elif how == "empty":
        (checkpoints / f"step_{number + 1}").mkdir(exist_ok=True)
    elif how == "pointer":
        (checkpoints / f"step_{number + 2}.pt").symlink_to(checkpoints / "nowhere.pt")


def hurt(kind: str) -> None:
    if kind in ("truncate", "empty", "pointer"):
        damage(kind)
        kind = "kill"
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "spin":
        while True:
            pass
    elif kind == "exit":
        os._exit(9)
    raise RuntimeError(f"fault at step {step}")


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
checkpoints.mkdir(parents=True, exist_ok=True)
# After its first pass in a process DDP lays gradients out in another order, in which they are then added: let that be
# over before a pass that counts, or a restart alone changes the last bits.
for _ in range(2):
    model(torch.zeros(8, 32)).sum().backward()
step = 0
if heartbeat.resume_path():
    state = torch.load(heartbeat.resume_path())
    step = state["step"]
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
log = open(out / f"steps-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115
log.write(json.dumps({"step": step, "generation": generation, "at": time.monotonic()}) + "\n")

while step < steps:
    batch = torch.randn(8, 32, generator=torch.Generator().manual_seed(step * world + rank))
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    step += 1
    heartbeat.beat(step)
    log.write(json.dumps({"step": step, "generation": generation, "at": time.monotonic()}) + "\n")
    if step % every == 0:
        if rank == 0:
            save(step)
        dist.barrier()
    taken = out / f"fault-{step}-{rank}"
    if (step, rank) in faults and not taken.exists():
        taken.touch()
        hurt(faults[step, rank])
    if pause_s:
        time.sleep(pause_s)
        if last.exists():
            steps = int(last.read_text())
if rank == 0:
    digest = hashlib.sha256()
    for tensor in model.module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    (out / "digest").write_text(digest.hexdigest())
dist.destroy_process_group()
