"""Post-import hooks: what torch does is noticed without importing torch and without a change in the script.

A watched module is found by whoever would find it anyway. Only the loader *instance* made for this one import gets an
``exec_module`` of its own, and loses it again before it is called: what ``find_spec`` returns to others, the module's
``__loader__``, ``reload`` and pickling stay as they are.
"""

from __future__ import annotations

import os
import sys

from ftlaunch.heartbeat.harmless import Harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

WATCHED = (
    "torch.optim.optimizer",
    "torch._dynamo",
    "torch.serialization",
    "torch.distributed.distributed_c10d",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.checkpoint.state_dict_loader",
    "torch.distributed.checkpoint.state_dict",
    "safetensors.torch",
    "transformers.trainer",
    "accelerate.accelerator",
    "lightning.pytorch.trainer.trainer",
    "pytorch_lightning.trainer.trainer",
)


def install() -> None:
    """Watch for the modules of :data:`WATCHED`, unless ``FTLAUNCH_HOOKS`` is ``off``. Costs 0.1 µs per import."""
    if os.environ.get("FTLAUNCH_HOOKS", "").lower() not in ("off", "0", "false"):
        sys.meta_path.insert(0, PostImport(WATCHED, _fire))


def _fire(name: str, module: ModuleType) -> None:
    from ftlaunch.heartbeat import hooks_frameworks, hooks_torch

    {**hooks_torch.HOOKS, **hooks_frameworks.HOOKS}[name](module)


class PostImport:
    """A meta path finder that calls back after a watched module was executed. Removes itself when none is left."""

    def __init__(self, watched: Sequence[str], fire: Callable[[str, ModuleType], None]) -> None:
        self._watched = set(watched)
        self._fire = fire

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The others' spec for a watched module, None for all other modules."""
        if name not in self._watched:
            return None
        spec = find_behind(self, name, path, target)
        if spec is not None:
            after_execution(spec, lambda module: self._done(name, module))
        return spec

    def _done(self, name: str, module: ModuleType) -> None:
        if name not in self._watched:
            return
        self._watched.discard(name)
        if not self._watched and self in sys.meta_path:
            sys.meta_path.remove(self)
        with Harmless():
            self._fire(name, module)


def find_behind(finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """What the finders behind ``finder`` in ``sys.meta_path`` find."""
    passed = False
    for other in list(sys.meta_path):
        if passed:
            spec = other.find_spec(name, path, target)
            if spec is not None:
                return spec
        passed = passed or other is finder
    return None


def after_execution(spec: ModuleSpec, call: Callable[[ModuleType], None]) -> None:
    """Have ``call`` called with the module once this spec's loader has executed it without an error."""
    loader = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None or isinstance(loader, type):
        return

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # type: ignore[union-attr]
        execute(module)
        call(module)

    with Harmless():
        # A loader with __slots__ refuses: then the module is loaded without us.
        loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
