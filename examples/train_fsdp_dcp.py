"""Train with FSDP (``fully_shard``), save with torch.distributed.checkpoint, resume from the newest whole checkpoint.

    ftlaunch --nproc-per-node 2 examples/train_fsdp_dcp.py --checkpoint-dir /tmp/demo/fsdp

Every checkpoint is a directory ``step-N`` that appears under this name only when all ranks have written their part. A
resumed run may have another number of ranks. CPU with gloo, or GPUs with NCCL when there are any.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkpoint-dir", type=Path, default=Path(tempfile.gettempdir()) / "ftlaunch-example" / "fsdp"
    )
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all (default 200)")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default 50)")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep (default 2)")
    parser.add_argument("--step-s", type=float, default=0.02, help="least time a step takes, in seconds (default 0.02)")
    return parser.parse_args()


def build(device_type: str) -> nn.Module:
    """Return the sharded model: every block by itself, then the rest."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)), nn.Linear(64, 1))
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for block in list(model)[:-1]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def complete(folder: Path) -> list[Path]:
    """Return the whole checkpoints in ``folder``, oldest first. ``.metadata`` is the last thing that DCP writes."""
    found = [path for path in folder.glob("step-*") if (path / ".metadata").is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """Return what is saved, and what a load fills in."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step}


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, keep: int) -> None:
    """Save under a hidden name; rank 0 gives it its name once everybody is done, then drops the oldest ones."""
    part, final = folder / f".part-{step}", folder / f"step-{step}"
    if dist.get_rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    dist.barrier()
    dcp.save(snapshot(model, optimizer, step), checkpoint_id=part)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(final, ignore_errors=True)
        os.rename(part, final)
        for old in complete(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
        print(f"step {step}: saved {final}", flush=True)
    dist.barrier()


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest whole checkpoint and return its step, 0 without one. Rank 0 chooses for all."""
    choice: list[Path | None] = [(complete(folder) or [None])[-1]]
    dist.broadcast_object_list(choice, src=0)
    if choice[0] is None:
        return 0
    state = snapshot(model, optimizer, 0)
    dcp.load(state, checkpoint_id=choice[0])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    print(f"rank {dist.get_rank()}: resuming from {choice[0]}", flush=True)
    return int(state["step"])


def main() -> None:
    """Train to the last step."""
    args = parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = build(device.type)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = resume(args.checkpoint_dir, model, optimizer)
    while step < args.steps:
        generator = torch.Generator().manual_seed(step * 1000 + dist.get_rank())
        inputs = torch.randn(16, 64, generator=generator).to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(args.step_s)
        if step % args.save_every == 0 or step == args.steps:
            save(args.checkpoint_dir, model, optimizer, step, args.keep)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
