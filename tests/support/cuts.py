"""Kill ranks in the middle of a save, at a byte of a file: see cuts.c. Script and libraries stay as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("cuts.c")


@dataclass(frozen=True)
class Cut:
    """Where one rank dies: when byte ``offset`` of a file like ``pattern`` is to be written, or before it is renamed.

    ``whom``: ``self``, the process that writes, or ``parent``, for a child that writes on behalf of a rank. With
    ``hold`` the writer stays in its write until :meth:`Cuts.release`.
    """

    rank: int
    pattern: str
    offset: int | None
    """``None``: before the rename to that name."""
    hold: bool = False
    whom: str = "self"


class Cuts:
    """Cuts that happen one after the other, each once."""

    def __init__(self, folder: Path, cuts: Sequence[Cut]) -> None:
        self._folder = folder
        self._cuts = cuts
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler to build what ends a rank in the middle of a save")
        folder.mkdir(parents=True, exist_ok=True)
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-ldl")
        subprocess.run([compiler, *flags, "-o", str(folder / "cuts.so"), str(_SOURCE)], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """What the job needs in its environment."""
        plan = (f"{c.rank},{-1 if c.offset is None else c.offset},{c.whom},{c.hold:d},{c.pattern}" for c in self._cuts)
        preloaded = " ".join(filter(None, (str(self._folder / "cuts.so"), os.environ.get("LD_PRELOAD"))))
        return {"LD_PRELOAD": preloaded, "CUTS_FOLDER": str(self._folder), "CUTS": " ".join(plan)}

    def begun(self, number: int) -> bool:
        """Whether this cut has come: the rank is dead, or held in its write."""
        return (self._folder / f"{number}.cut").exists()

    def release(self, number: int) -> None:
        """End the rank that is held by this cut."""
        (self._folder / f"{number}.go").touch()
