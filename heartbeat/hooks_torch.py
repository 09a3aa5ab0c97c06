"""What is done to torch once it is imported. Only its public functions are touched, signatures kept."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ftlaunch.heartbeat.client import CHECKPOINT, CLIENT
from ftlaunch.heartbeat.harmless import Harmless
from ftlaunch.heartbeat.storewait import until_listening

CHECKPOINT_SECTION = "checkpoint"
_MAX_PATH = 4096
_Function = Callable[..., Any]
_torch: Any = None
_uploads: set[str] = set()
"""Where asynchronous saves are under way. One that runs in a thread calls the hooked ``save`` there."""


def _count() -> None:
    # torch makes an empty step to have the tensors that an optimizer's state is loaded into: no sign of training.
    if CHECKPOINT_SECTION not in CLIENT.sections:
        CLIENT.tick()


_tick: Callable[[], None] = _count


def hook_optimizer(module: ModuleType) -> None:
    """Count the steps of all optimizers."""
    global _torch
    _torch = module.torch
    module.register_optimizer_step_post_hook(_after_step)
    CLIENT.hooked = True
    CLIENT.hello("import")
    _announce_first(module.Optimizer)


def _announce_first(optimizer: Any) -> None:
    """Tell when the script makes its first optimizer: from then on steps are to be expected."""
    original = optimizer.__init__

    @functools.wraps(original)
    def announcing(self: Any, *args: Any, **kwargs: Any) -> None:
        optimizer.__init__ = original
        with Harmless():
            CLIENT.hello("optimizer")
        original(self, *args, **kwargs)

    optimizer.__init__ = announcing


def _after_step(optimizer: object, args: object, kwargs: object) -> None:
    # Under torch.compile this function is traced, and the tick breaks the graph. torch's own optimizers break it there
    # themselves; one that may be compiled with fullgraph=True must not fail because of us, and goes without ticks.
    if not _torch.compiler.is_compiling() or type(optimizer).__module__.startswith("torch.optim."):
        _tick()


def hook_compiler(module: ModuleType) -> None:
    """Keep ``torch.compile`` out of our code: it would trace the client, and warn about the system calls."""
    global _tick
    _tick = module.disable(_count)


def hook_serialization(module: ModuleType) -> None:
    """``torch.save`` and ``torch.load``; ``torch`` itself imports them from here afterwards."""
    module.save = in_section(module.save, CHECKPOINT_SECTION, _saved_by_torch)  # type: ignore[attr-defined]
    module.load = in_section(module.load, CHECKPOINT_SECTION)  # type: ignore[attr-defined]


def hook_process_group(module: ModuleType) -> None:
    """``init_process_group``."""
    joining = _once_there_is_a_store(module.init_process_group)
    module.init_process_group = in_section(joining, "init")  # type: ignore[attr-defined]


def hook_distributed_save(module: ModuleType) -> None:
    """``torch.distributed.checkpoint.save`` and ``async_save``."""
    module.save = in_section(module.save, CHECKPOINT_SECTION, _saved_distributed)  # type: ignore[attr-defined]
    module.async_save = _uploading_since(module.async_save)  # type: ignore[attr-defined]


def hook_distributed_load(module: ModuleType) -> None:
    """``torch.distributed.checkpoint.load``."""
    module.load = in_section(module.load, CHECKPOINT_SECTION)  # type: ignore[attr-defined]


def hook_state_dict(module: ModuleType) -> None:
    """What is gathered to be saved, and scattered after a load, by ``torch.distributed.checkpoint.state_dict``."""
    for kind in ("state_dict", "model_state_dict", "optimizer_state_dict"):
        for name in (f"get_{kind}", f"set_{kind}"):
            if hasattr(module, name):
                setattr(module, name, in_section(getattr(module, name), CHECKPOINT_SECTION))


def hook_safetensors(module: ModuleType) -> None:
    """Weights written and read by Hugging Face libraries: a section, but not a checkpoint by themselves."""
    for name in ("save_file", "load_file", "save_model", "load_model"):
        if hasattr(module, name):
            setattr(module, name, in_section(getattr(module, name), CHECKPOINT_SECTION))


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "torch.optim.optimizer": hook_optimizer,
    "torch._dynamo": hook_compiler,
    "torch.serialization": hook_serialization,
    "torch.distributed.distributed_c10d": hook_process_group,
    "torch.distributed.checkpoint.state_dict_saver": hook_distributed_save,
    "torch.distributed.checkpoint.state_dict_loader": hook_distributed_load,
    "torch.distributed.checkpoint.state_dict": hook_state_dict,
    "safetensors.torch": hook_safetensors,
}


def _once_there_is_a_store(function: _Function) -> _Function:
    """Wrap ``init_process_group(backend, init_method, timeout, world_size, rank, store, ...)``."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        method = kwargs.get("init_method", args[1] if len(args) > 1 else None)
        own_store = kwargs.get("store", args[5] if len(args) > 5 else None)
        if method in (None, "env://") and own_store is None:
            # Nothing wider: a signal handler of the script may raise what it likes meanwhile.
            with contextlib.suppress(OSError, ValueError, OverflowError):
                until_listening()
        return function(*args, **kwargs)

    return wrapper


def in_section(function: _Function, name: str, saved: _Function | None = None) -> _Function:
    """Wrap so that each call is a section; ``saved(arguments, keywords, result)`` is called after a success."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        known = name in CLIENT.sections
        nested = CLIENT.open_section(name) and known  # what another thread has open does not count
        try:
            result = function(*args, **kwargs)
        finally:
            CLIENT.close_section(name)
        if saved is not None and not nested:
            with Harmless():
                saved(args, kwargs, result)
        return result

    return wrapper


def _saved_by_torch(args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
    path = _path_of(kwargs.get("f", args[1] if len(args) > 1 else None))
    if path is not None:
        tell_checkpoint("torch.save", path, CLIENT.step)


def _path_of(target: Any) -> str | bytes | None:
    """Where that is: a path, or the name of an open file ("" for none); ``None`` for what is not on a disk."""
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    # What is opened first and renamed when it is whole. A buffer in memory is none; nor is what another thread writes,
    # as torch.distributed.checkpoint does: it is a part of something larger.
    if not CLIENT.speaks_here() or not hasattr(target, "fileno"):
        return None
    if not stat.S_ISREG(os.fstat(target.fileno()).st_mode):
        return None
    name = getattr(target, "name", "")
    return name if isinstance(name, (str, bytes)) else ""


def _saved_distributed(args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
    path = _distributed_path(kwargs)
    if path not in _uploads:
        tell_checkpoint("dcp", path, CLIENT.step)


def _uploading_since(async_save: _Function) -> _Function:
    """Wrap so that the call is a section, and that the end of what it began is told once, with the step of the call."""

    @functools.wraps(async_save)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        path, step = _distributed_path(kwargs), CLIENT.step
        _uploads.add(path)
        try:
            result = in_section(async_save, CHECKPOINT_SECTION)(*args, **kwargs)
        except BaseException:
            _uploads.discard(path)
            raise
        with Harmless():
            future: Any = getattr(result, "upload_completion", result)
            future.add_done_callback(lambda done: _uploaded(done, path, step))
        return result

    return wrapper


def _uploaded(done: Any, path: str, step: int | None) -> None:
    _uploads.discard(path)
    if not _failed(done):
        tell_checkpoint("dcp", path, step)


def _failed(done: Any) -> bool:
    return done.cancelled() or done.exception() is not None


def _distributed_path(kwargs: dict[str, Any]) -> str:
    place = kwargs.get("checkpoint_id")
    if place is None:
        place = getattr(kwargs.get("storage_writer"), "path", "")
    return os.fspath(place) if isinstance(place, (str, os.PathLike)) else ""


def tell_checkpoint(source: str, path: str | bytes, step: int | None) -> None:
    """Say that a checkpoint is whole; ``step`` is the script's or framework's own number where it is known."""
    CLIENT.tell(CHECKPOINT, {"source": source, "path": os.fsdecode(path)[:_MAX_PATH], "step": step})
