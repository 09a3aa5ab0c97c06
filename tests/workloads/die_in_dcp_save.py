"""Save a sharded model at step 10, then both ranks die while saving step 20: die_in_dcp_save.py DIR MOMENT."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

root, moment = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 64)).sum().backward()
optimizer.step()


def die() -> None:
    """As the kernel or a pulled plug does it."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_together(*_args: object) -> None:
    """Rank 0 takes the other one along, which waits for it inside a collective."""
    os.kill(int((root / "rank1.pid").read_text()), signal.SIGKILL)
    die()


class DyingWriter(filesystem.FileSystemWriter):
    """Dies at the chosen moment of a save."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Write this rank's shard; with ``shards`` cut it off and die."""
        result = super().write_data(*args, **kwargs)
        if moment == "shards":
            shard = next(Path(self.path).glob(f"__{rank}_*.distcp"))
            os.truncate(shard, shard.stat().st_size // 2)
            die()
        return result

    def finish(self, *args: Any, **kwargs: Any) -> None:
        """All shards are written: die before the metadata, or between writing and renaming it."""
        if moment == "before-metadata":
            die_together()
        self.fs.rename = die_together
        super().finish(*args, **kwargs)


def save(step: int, writer: filesystem.FileSystemWriter) -> None:
    """Save model and optimizer."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(state, storage_writer=writer)


(root / f"rank{rank}.pid").write_text(str(os.getpid()))
save(10, filesystem.FileSystemWriter(root / "step_10"))
save(20, DyingWriter(root / "step_20"))
