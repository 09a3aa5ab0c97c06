"""Checkpoints of all formats written by hand, without torch: small, and as their writers lay them out."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


class Metadata:
    """Stands for torch's class of this name: the reader goes by names only."""

    def __init__(self, storage_data: Mapping[object, object]) -> None:
        self.state_dict_metadata = {"w": object}
        self.storage_data = storage_data


class _StorageInfo:
    def __init__(self, relative_path: object, offset: object, length: object) -> None:
        self.relative_path = relative_path
        self.offset = offset
        self.length = length


def torch_bytes(content: object = None, padding: int = 300) -> bytes:
    """What ``torch.save`` writes: an uncompressed zip with a pickle and the raw storages."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model": 1} if content is None else content, protocol=2))
        archive.writestr("archive/data/0", bytes(padding))
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def torch_file(path: Path, content: object = None) -> Path:
    """Write one ``torch.save`` file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(torch_bytes(content))
    return path


def safetensors_bytes(size: int = 64) -> bytes:
    """One tensor of ``size`` bytes."""
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


def dcp_metadata(ends: Mapping[str, int]) -> bytes:
    """A ``.metadata`` that names shards with where their only item ends."""
    return pickle.dumps(Metadata({("w", name): _StorageInfo(name, 0, end) for name, end in ends.items()}), protocol=4)


def dcp(path: Path, ranks: int = 2, size: int = 100) -> Path:
    """A distributed checkpoint."""
    path.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        (path / f"__{rank}_0.distcp").write_bytes(bytes(size))
    (path / ".metadata").write_bytes(dcp_metadata({f"__{rank}_0.distcp": size for rank in range(ranks)}))
    return path


def hf(root: Path, step: int, optimizer: bool = True, sharded: bool = False) -> Path:
    """A directory of the Hugging Face Trainer."""
    path = root / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if sharded:
        names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        for name in names:
            (path / name).write_bytes(safetensors_bytes())
        index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        (path / "model.safetensors").write_bytes(safetensors_bytes())
    if optimizer:
        torch_file(path / "optimizer.pt")
    torch_file(path / "scheduler.pt")
    torch_file(path / "rng_state.pth")
    (path / "training_args.bin").write_bytes(torch_bytes())
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def megatron(root: Path, step: int, ranks: int = 2, tracker: bool = True) -> Path:
    """A Megatron directory with one subdirectory per tensor rank."""
    path = root / f"iter_{step:07d}"
    for rank in range(ranks):
        torch_file(path / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
    if tracker:
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return path


def megatron_distributed(path: Path) -> Path:
    """A distributed checkpoint as Megatron core writes it."""
    dcp(path)
    torch_file(path / "common.pt")
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    return path


def nemo2(root: Path, step: int, last: bool = False) -> Path:
    """A NeMo 2 directory."""
    name = f"model--val_loss={5.0 - step / 1000:.2f}-epoch=0-step={step}-consumed_samples={step * 8}.0"
    path = root / (name + ("-last" if last else ""))
    megatron_distributed(path / "weights")
    (path / "context").mkdir()
    (path / "context" / "io.json").write_text("{}")
    return path


def nemo_archive(path: Path) -> Path:
    """A ``.nemo`` file."""
    with tarfile.open(path, "w") as archive:
        for name, data in (("model_config.yaml", b"a: 1\n"), ("model_weights.ckpt", torch_bytes(padding=20_000))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def cut(path: Path, keep: float = 0.5) -> None:
    """Cut a file off, as a kill in the middle of a write does."""
    os.truncate(path, int(path.stat().st_size * keep))


def set_age(path: Path, age_s: int) -> None:
    """Let it have been written ``age_s`` seconds before a fixed moment."""
    moment = 1_700_000_000 - age_s
    os.utime(path, (moment, moment))
