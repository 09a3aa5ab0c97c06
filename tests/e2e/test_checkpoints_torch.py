"""Checkpoints that torch and safetensors wrote themselves, whole, cut off, and killed in the middle of a save."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.launcher.checkpoints.model import View
from ftlaunch.launcher.checkpoints.scan import Request, scan

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SAVER = Path(__file__).parent.parent / "workloads" / "die_in_dcp_save.py"


def state() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8).half())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.dtype == torch.float32])
    model[0](torch.randn(4, 32)).sum().backward()
    optimizer.step()
    extra = {"c": torch.zeros(3, dtype=torch.complex64), "none": torch.empty(0), "b": torch.tensor([True])}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "extra": extra}


def steps(view: View) -> list[int | None]:
    return [found.step for found in view.complete]


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_torch_save_at_every_length(tmp_path: Path, zipped: bool) -> None:
    whole = tmp_path / "whole.pt"
    torch.save({"step": 123, **state()}, whole, _use_new_zipfile_serialization=zipped)
    size = whole.stat().st_size
    view = scan(str(tmp_path), Request("torch"))
    assert steps(view) == [123]
    folder = tmp_path / "cut"
    folder.mkdir()
    for number, length in enumerate(sorted({*range(0, size, size // 40), size - 1, size - 2, size - 22})):
        shutil.copy(whole, folder / f"ckpt_{number}.pt")
        cut(folder / f"ckpt_{number}.pt", length)
    view = scan(str(folder), Request(wanted=1000))
    assert view.complete == ()
    assert len(view.skipped) >= 40


def test_torch_save_of_anything(tmp_path: Path) -> None:
    contents: list[Any] = [
        torch.zeros(3),
        [1, 2],
        "text",
        None,
        torch.nn.Linear(2, 2),
        {"step": torch.tensor(5)},
        {1: 2},
    ]
    for number, content in enumerate(contents):
        torch.save(content, tmp_path / f"ckpt_{number}.pt")
        torch.save(content, tmp_path / f"old_{number}.pt", _use_new_zipfile_serialization=False)
    view = scan(str(tmp_path))
    assert steps(view) == list(reversed(range(len(contents))))
    assert view.skipped == ()


def test_larger_than_four_gigabytes_is_still_a_zip(tmp_path: Path) -> None:
    # Sparse: the storage is never written, so the zip64 records are real and the disk is not filled.
    big = torch.UntypedStorage.from_file(str(tmp_path / "raw"), True, 4_400_000_000)
    with torch.serialization.skip_data():
        torch.save({"step": 9, "w": torch.tensor([], dtype=torch.uint8).set_(big)}, tmp_path / "ckpt_9.pt")
    del big
    (tmp_path / "raw").unlink()
    assert (tmp_path / "ckpt_9.pt").stat().st_size > 4_400_000_000
    assert steps(scan(str(tmp_path))) == [9]
    os.truncate(tmp_path / "ckpt_9.pt", 4_400_000_000)
    assert steps(scan(str(tmp_path))) == []


def save_dcp(path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state(), checkpoint_id=path, no_dist=True)


def test_dcp(tmp_path: Path) -> None:
    for step in (9, 10, 11, 12, 13):
        save_dcp(tmp_path / f"step_{step}")
    assert steps(scan(str(tmp_path))) == [13, 12, 11, 10, 9]
    shard = tmp_path / "step_13" / "__0_0.distcp"
    cut(shard, shard.stat().st_size - 1)
    (tmp_path / "step_12" / "__0_0.distcp").unlink()
    (tmp_path / "step_11" / ".metadata").unlink()
    metadata = tmp_path / "step_10" / ".metadata"
    size = metadata.stat().st_size
    view = scan(str(tmp_path))
    assert steps(view) == [10, 9]
    assert [one.reason.split(":")[0] for one in view.skipped][1:] == ["__0_0.distcp is missing", "has no .metadata"]
    for length in range(0, size, size // 25):
        cut(metadata, length)
        assert steps(scan(str(tmp_path), Request("dcp"))) == [9], length
        shutil.copy(tmp_path / "step_9" / ".metadata", metadata)


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    for step in (1, 2):
        safetensors.save_file({"w": torch.randn(10, 10), "e": torch.empty(0)}, tmp_path / f"model_{step}.safetensors")
    assert steps(scan(str(tmp_path))) == [2, 1]
    path = tmp_path / "model_2.safetensors"
    cut(path, path.stat().st_size - 1)
    assert steps(scan(str(tmp_path))) == [1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


MOMENTS = {
    "shards": "has no .metadata: the save did not finish",
    "before-metadata": "has no .metadata: the save did not finish",
    "metadata": "has a .metadata.tmp: a save was interrupted",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_two_ranks_killed_in_the_middle_of_a_save(tmp_path: Path, moment: str) -> None:
    port = str(free_port())
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SAVER), str(tmp_path), moment],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        codes = [rank.wait(90) for rank in ranks]
        errors = [rank.stderr.read() for rank in ranks if rank.stderr is not None]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            if rank.stderr is not None:
                rank.stderr.close()
    assert codes == [-signal.SIGKILL] * 2, errors
    assert (tmp_path / "step_20").is_dir()
    view = scan(str(tmp_path))
    assert steps(view) == [10]
    assert [os.path.basename(one.path) for one in view.skipped] == ["step_20"]
    assert view.skipped[0].reason == MOMENTS[moment]
    assert len(list((tmp_path / "step_10").glob("*.distcp"))) == 2
