"""FSDP with torch.distributed.checkpoint: ``save_dcp.py sync|thread|process``, the last two with ``async_save``."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lives


def snapshot(step):
    weights, optimizer_state = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": optimizer_state, "step": step}


def main() -> None:
    """Train to the last step."""
    step = 0
    if lives.resume_from is not None:
        state = snapshot(0)
        dcp.load(state, checkpoint_id=lives.resume_from)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        step = state["step"]
    lives.begin(step)
    pending = None
    while step < lives.steps:
        batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * 2 + dist.get_rank()))
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        step += 1
        lives.made(step)
        if step % lives.every == 0:
            if pending is not None:
                pending.result()
            pending = save(step)
    if pending is not None:
        pending.result()
    lives.end(step, [tensor.full_tensor() for tensor in model.state_dict().values()])


def save(step):
    """Save; the future of it unless it is done."""
    place = lives.saved / f"step-{step}"
    if how == "sync":
        dcp.save(snapshot(step), checkpoint_id=place)
        return None
    kind = AsyncCheckpointerType.PROCESS if how == "process" else AsyncCheckpointerType.THREAD
    return dcp.async_save(snapshot(step), checkpoint_id=place, process_group=savers, async_checkpointer_type=kind)


if __name__ == "__main__":  # the process that saves imports this file too
    how = sys.argv[1]
    dist.init_process_group("gloo")
    savers = dist.new_group(backend="gloo")  # collectives of two threads must not mix
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    main()
    dist.destroy_process_group()
