"""CUDA_VISIBLE_DEVICES as CUDA reads it, and counting without torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftlaunch.launcher.host import devices
from ftlaunch.launcher.host import visible as visibility
from ftlaunch.launcher.host.devices import Gpu

GPUS = (
    Gpu(0, "GPU-aa11", "0000:18:00.0"),
    Gpu(1, "GPU-aa22", "0000:2a:00.0", ("MIG-m1", "MIG-m2")),
    Gpu(2, "GPU-bb33", "0000:3a:00.0"),
    Gpu(3, "GPU-cc44", "0000:5d:00.0"),
)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        ("0,-1,1", [0]),
        ("0,9,1", [0]),
        ("0,,1", [0]),
        ("NoDevFiles", []),
        ("GPU-bb33,GPU-aa11", [2, 0]),
        ("GPU-bb", [2]),
        ("GPU-aa", []),
        ("GPU-BB33", []),
        ("GPU-zz,0", []),
        ("MIG-m2", [1]),
        ("MIG-m1,MIG-m2", [1, 1]),
        ("MIG-GPU-aa22/3/0", [1]),
        ("MIG-GPU-aa22/3/0,MIG-GPU-aa22/4/0", [1, 1]),
        ("MIG-GPU-aa22/3/0,MIG-GPU-aa22/3/0", []),
        ("MIG-GPU-bb33/3/0", []),
        ("1,1", []),
        ("2,GPU-bb33", []),
    ],
)
def test_select(visible: str | None, expected: list[int]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu.index for gpu in devices.select(visibility.entries(environ), GPUS)] == expected


@pytest.mark.parametrize(
    ("chosen", "wanted", "expected"),
    [
        (None, ["0", "1"], ("0", "1")),
        (None, ["GPU-x"], ("GPU-x",)),
        (["7", "GPU-x"], ["1"], ("GPU-x",)),
        (["7", "GPU-x"], ["GPU-x", "0"], ("GPU-x", "7")),
    ],
)
def test_narrow(chosen: list[str] | None, wanted: list[str], expected: tuple[str, ...]) -> None:
    assert visibility.narrow(chosen, wanted) == expected


@pytest.mark.parametrize(
    ("chosen", "wanted", "message"),
    [
        (["7"], ["1"], "has no number 1"),
        (["7"], ["GPU-x"], "does not list GPU-x"),
        ([], ["0"], "has no number 0"),
        (None, ["0", "0"], "0 comes twice"),
        (["7", "8"], ["1", "8"], "must be numbers|has no number 8"),
        (None, [], "at least one GPU"),
        (None, ["-1"], "must be numbers"),
    ],
)
def test_narrow_refuses(chosen: list[str] | None, wanted: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        visibility.narrow(chosen, wanted)


class NvmlError(Exception):
    pass


def nvml(*, broken: str = "", gpus: tuple[Gpu, ...] = GPUS) -> Any:
    """A stand-in for the pynvml module; ``broken`` names the call that fails."""
    calls: list[str] = []

    def answering(name: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            if name == broken:
                raise NvmlError(name)
            return answer(*arguments)

        return call

    def mig(gpu: Gpu, slot: int) -> Any:
        if slot >= len(gpu.mig_uuids):
            raise NvmlError("not found")
        return SimpleNamespace(uuid=gpu.mig_uuids[slot])

    def slots(gpu: Gpu) -> int:
        if not gpu.mig_uuids:
            raise NvmlError("not supported")
        return 7

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: gpus[index],
        "nvmlDeviceGetUUID": lambda handle: handle.uuid.encode(),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"0000{handle.pci.upper()}"),
        "nvmlDeviceGetMaxMigDeviceCount": slots,
        "nvmlDeviceGetMigDeviceHandleByIndex": mig,
    }
    functions = {name: answering(name, answer) for name, answer in answers.items()}
    return SimpleNamespace(NVMLError=NvmlError, calls=calls, **functions)


def test_the_table_from_nvml() -> None:
    library = nvml()
    assert devices.read_nvml(library) == GPUS
    assert library.calls[-1] == "nvmlShutdown"


def test_nvml_that_refuses_is_no_table() -> None:
    uninitialised = nvml(broken="nvmlInit")
    assert devices.read_nvml(uninitialised) == ()
    assert uninitialised.calls == ["nvmlInit"]
    lost = nvml(broken="nvmlDeviceGetHandleByIndex")
    assert devices.read_nvml(lost) == ()
    assert lost.calls[-1] == "nvmlShutdown"


def test_device_files_stand_in_for_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> tuple[Gpu, ...]:
        return ()

    monkeypatch.setattr(devices, "_ask_nvml", nobody)
    (tmp_path / "dev").mkdir()
    assert devices.gpu_table(tmp_path) == ()
    for name in ("nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / "dev" / name).touch()
    assert devices.gpu_table(tmp_path) == (Gpu(0), Gpu(1))


def test_nvml_is_not_started_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> tuple[Gpu, ...]:
        pytest.fail("asked NVML on a machine without a driver")

    monkeypatch.setattr(devices, "_ask_nvml", forbidden)
    assert devices.gpu_table(tmp_path) == ()


@pytest.mark.parametrize(
    ("chosen", "table", "expected"),
    [
        (None, GPUS, 4),
        (("0", "3"), GPUS, 2),
        (("0", "9"), GPUS, 1),
        ((), GPUS, 0),
        (("0", "1"), (Gpu(0),), 1),
        (("GPU-a", "GPU-b"), (Gpu(0), Gpu(1)), 2),
        (None, (), 0),
        (("GPU-a",), (), 0),
    ],
)
def test_count(
    chosen: tuple[str, ...] | None, table: tuple[Gpu, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpu_table", lambda: table)
    assert devices.count_gpus(chosen) == expected


def test_xpus(tmp_path: Path) -> None:
    for name, vendor in (("renderD128", "0x8086"), ("renderD129", "0x10de"), ("renderD130", "0x8086")):
        (tmp_path / "sys/class/drm" / name / "device").mkdir(parents=True)
        (tmp_path / "sys/class/drm" / name / "device/vendor").write_text(vendor + "\n")
    assert devices.count_xpus({}, tmp_path) == 2
    assert devices.count_xpus({"ZE_AFFINITY_MASK": "1.0,1.1"}, tmp_path) == 1
    assert devices.count_xpus({"ZE_AFFINITY_MASK": "5"}, tmp_path) == 0
    assert devices.count_xpus({}, tmp_path / "nowhere") == 0
