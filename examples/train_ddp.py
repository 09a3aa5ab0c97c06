"""Train a small model with DistributedDataParallel; save every few steps, resume from what was saved.

    ftlaunch --nproc-per-node 2 examples/train_ddp.py --checkpoint /tmp/demo/model.pt

Runs on CPU with gloo, on GPUs with NCCL when there are any. Nothing here is special to ftlaunch: the same file runs
under torchrun, or alone as ``python examples/train_ddp.py``.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path(tempfile.gettempdir()) / "ftlaunch-example" / "ddp.pt")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps in all (default 300)")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default 50)")
    parser.add_argument("--step-s", type=float, default=0.02, help="least time a step takes, in seconds (default 0.02)")
    parser.add_argument("--crash-at", type=int, default=0, help="the last rank kills itself once at this step")
    return parser.parse_args()


def join() -> torch.device:
    """Join the process group and return the device to train on."""
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29511")):
        os.environ.setdefault(name, alone)
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def save(path: Path, state: dict[str, object]) -> None:
    """Write beside the final place and move there: a crash leaves the old checkpoint or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def crash_once(step: int, args: argparse.Namespace) -> None:
    """Play a fault: the last rank dies as if the kernel had run out of memory, in the first life of the job only."""
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if step == args.crash_at and first_life and dist.get_rank() == dist.get_world_size() - 1:
        print(f"rank {dist.get_rank()}: killing myself at step {step}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train to the last step."""
    args = parse_args()
    device = join()
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    step = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        print(f"rank {rank}: resuming after step {step}", flush=True)

    # Data by step and rank: a resumed run sees what an undisturbed one would have seen.
    while step < args.steps:
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        inputs = torch.randn(16, 32, generator=generator).to(device)
        loss = nn.functional.mse_loss(ddp(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(args.step_s)
        if step % args.save_every == 0 or step == args.steps:
            if rank == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(args.checkpoint, state)
                print(f"step {step}: loss {loss.item():.4f}, saved", flush=True)
            dist.barrier()
        crash_once(step, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
