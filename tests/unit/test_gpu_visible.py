"""What CUDA_VISIBLE_DEVICES selects, given what NVML lists."""

from __future__ import annotations

import pytest

from ftlaunch.launcher.host.quick_look import driver_present
from ftlaunch.launcher.host.visible import Device, choose

A, B, C = (Device(f"GPU-{start}-0000", index, "H100") for index, start in enumerate(("aaaa", "aabb", "cccc")))
GPUS = (A, B, C)
CUT = Device("GPU-dddd", 0, "A100")
FIRST = Device("MIG-1111", 0, "A100", True, CUT.uuid, 3, 0)
SECOND = Device("MIG-2222", 0, "A100", True, CUT.uuid, 4, 0)
WITH_MIG = (CUT, FIRST, SECOND, C)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("1", [B]),
        ("2,0", [C, A]),
        (" 2 , 0 ", [C, A]),
        ("0,2,-1,1", [A, C]),
        ("0,7,1", [A]),
        ("GPU-cccc-0000", [C]),
        ("GPU-aab", [B]),
        ("gpu-CCCC", []),
        ("GPU-CCCC", []),
        ("GPU-aa", []),
        ("cccc", []),
        ("0,0", []),
        ("0,GPU-aaaa", []),
        ("NoDevFiles", []),
        ("1,", [B]),
        ("²", []),
        ("9" * 5000, []),
    ],
)
def test_choice_among_whole_gpus(visible: str | None, expected: list[Device]) -> None:
    assert list(choose(GPUS, visible).devices) == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [FIRST, SECOND, C]),
        ("0", [FIRST, SECOND]),
        ("1", [C]),
        ("MIG-2222", [SECOND]),
        ("MIG-1", [FIRST]),
        ("MIG-GPU-dddd/4/0", [SECOND]),
        ("MIG-GPU-dddd/9/0", []),
        ("MIG-", []),
        ("GPU-dddd", [FIRST, SECOND]),
    ],
)
def test_choice_among_mig_instances(visible: str | None, expected: list[Device]) -> None:
    order = "PCI_BUS_ID"
    assert list(choose(WITH_MIG, visible, order).devices) == expected


def test_what_is_not_there_is_said_in_one_line() -> None:
    assert choose(GPUS, "0,7").note == (
        "CUDA_VISIBLE_DEVICES=0,7: there is no device '7'; it and what follows are not visible"
    )
    assert "twice" in choose(GPUS, "1,1").note
    assert choose(GPUS, "").note == choose(GPUS, "-1").note == choose(GPUS, "0,-1").note == ""


def test_numbers_say_nothing_on_a_node_with_different_gpus() -> None:
    mixed = (A, Device("GPU-eeee", 1, "RTX 4090"))
    watched = choose(mixed, "0")
    assert watched.devices == mixed and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in watched.note
    assert choose(mixed, "0", "PCI_BUS_ID").devices == (A,)
    assert choose(mixed, "GPU-eeee").devices == mixed[1:]


def test_a_driver_is_looked_for_without_loading_it(tmp_path: pytest.TempPathFactory) -> None:
    folder = str(tmp_path)
    assert not driver_present({"LD_LIBRARY_PATH": f":{folder}"}, ())
    assert driver_present({}, (folder,))
    with open(f"{folder}/libnvidia-ml.so.1", "w"):
        pass
    assert driver_present({"LD_LIBRARY_PATH": f"/nowhere:{folder}"}, ())
