"""The launchers that are compared, each in a virtual environment of its own with the same PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".bench"
TORCH = "torch==2.13.0"
_ETCD = ("etcd-sdk-python>=0.0.7", "protobuf>=5.27")
_PACKAGES = {
    "ftlaunch": (TORCH, "numpy", "setuptools>=77", "click", "psutil", "nvidia-ml-py", "rich", *_ETCD),
    "torchrun": (TORCH, "numpy"),
    "nvrx": (TORCH, "numpy", "nvidia-resiliency-ext==0.4.1"),
    "picture": ("matplotlib",),
}


@dataclass(frozen=True)
class Contender:
    """One way to launch. ``options`` come before those that all launchers share."""

    name: str
    venv: str
    program: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where its program is."""
        return VENVS / self.venv / "bin" / self.program

    def command(self, script: Path, nproc: int, max_restarts: int = 20, *more: str) -> list[str]:
        """Return the command line that runs ``script`` with ``nproc`` ranks."""
        shared = ["--nproc-per-node", str(nproc), "--max-restarts", str(max_restarts)]
        return [str(self.path), *self.options, *shared, *more, str(script)]

    def with_options(self, name: str, *options: str) -> Contender:
        """Return a variant with another name and more options."""
        return Contender(name, self.venv, self.program, self.options + options, self.environment)


FTLAUNCH = Contender("ftlaunch", "ftlaunch", "ftlaunch")
FTLAUNCH_COLD = FTLAUNCH.with_options("ftlaunch (no standby)", "--standby", "off")
FTLAUNCH_WARM = FTLAUNCH.with_options("ftlaunch (standby)", "--standby", "on")
# Without this variable torchrun 2.13 never recovers here: the new workers wait for ever on keys of the old ones.
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TORCHRUN = Contender("torchrun", "torchrun", "torchrun", ("--standalone",), _OWN_STORE)
# The same on two nodes; where they meet is the bench's to say.
FTLAUNCH_C10D = FTLAUNCH.with_options("ftlaunch (c10d)")
TORCHRUN_C10D = Contender("torchrun (c10d)", "torchrun", "torchrun", (), _OWN_STORE)
NVRX = Contender("NVRx 0.4.1", "nvrx", "ft_launcher", ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"))


def prepare(venvs: Iterable[str], revision: str = "") -> None:
    """Install what is missing, and ftlaunch: a commit, or what is in the tree now."""
    for name in sorted(set(venvs)):
        stamp = VENVS / name / "stamp"
        wanted = f"{VENVS} {sys.version} {_PACKAGES[name]}"
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"installing {name}: {', '.join(_PACKAGES[name])}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", VENVS / name], check=True)
            _pip(name, *_PACKAGES[name])
            stamp.write_text(wanted)
        if name == "ftlaunch":
            _install_tree(revision)


def version(venv: str, package: str) -> str:
    """Return the version of ``package`` in a contender's environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python(venv), "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def python(venv: str) -> Path:
    """Return a contender's interpreter."""
    return VENVS / venv / "bin" / "python"


def warm_up(venvs: Iterable[str]) -> None:
    """Bring every environment's files into the page cache, so that the first sample is like the others."""
    for venv in sorted(set(venvs) - {"picture"}):
        code = "import torch, torch.distributed, torch.optim"
        subprocess.run([python(venv), "-W", "ignore", "-c", code], check=True, cwd="/")


def _install_tree(revision: str) -> None:
    # From a copy: a build folder left in the tree would bring old files into the wheel.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        copy.mkdir()
        if revision:
            archive = ["git", "-C", str(ROOT), "archive", "--format=tar", "-o", f"{folder}/tree.tar", revision]
            subprocess.run(archive, check=True)
            shutil.unpack_archive(f"{folder}/tree.tar", copy)
        else:
            for name in ("launcher", "heartbeat", "rendezvous"):
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copy(ROOT / name, copy)
        _pip("ftlaunch", "--no-deps", "--no-build-isolation", "--force-reinstall", str(copy))


def _pip(venv: str, *what: str) -> None:
    command = [str(python(venv)), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *what]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
