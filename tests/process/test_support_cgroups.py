"""The control groups that tests make do what they say, and are gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support import cgroups, procfs


def test_a_frozen_process_outlives_sigkill_until_it_is_thawed() -> None:
    with cgroups.freezer_group() as folder, subprocess.Popen(["sleep", "600"]) as sleeper:
        cgroups.join(folder, sleeper.pid)
        assert cgroups.members(folder) == [sleeper.pid]
        cgroups.freeze(folder)
        os.kill(sleeper.pid, signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(0.2)
        assert procfs.alive(sleeper.pid)
        cgroups.thaw(folder)
        assert sleeper.wait(10) == -signal.SIGKILL
    assert not folder.exists()


@pytest.mark.parametrize("make", [cgroups.freezer_group, lambda: cgroups.memory_group(64 << 20)])
def test_a_group_is_removed_with_whoever_is_still_in_it(make: Callable[[], AbstractContextManager[Path]]) -> None:
    made: list[Path] = []
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        with pytest.raises(ZeroDivisionError), make() as folder:
            made.append(folder)
            cgroups.join(folder, sleeper.pid)
            if (folder / "freezer.state").exists():
                cgroups.freeze(folder)
            raise ZeroDivisionError
    finally:
        sleeper.kill()
        sleeper.wait()
    assert sleeper.returncode == -signal.SIGKILL
    assert not made[0].exists()
