"""What is done to training frameworks once they are imported: a checkpoint of many files is one checkpoint.

Their saves are made of calls that are hooked themselves. Taken alone each of those would be told as a checkpoint, with
no step, while the rest is still to be written; inside the framework's own function they are not told.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ftlaunch.heartbeat.client import CLIENT
from ftlaunch.heartbeat.hooks_torch import CHECKPOINT_SECTION, in_section, tell_checkpoint


def hook_transformers(module: ModuleType) -> None:
    """``Trainer._save_checkpoint``: the one method behind every ``checkpoint-N``, and what subclasses call."""
    trainer: Any = module.Trainer
    trainer._save_checkpoint = in_section(trainer._save_checkpoint, CHECKPOINT_SECTION, _saved_by_transformers)


def hook_accelerate(module: ModuleType) -> None:
    """``Accelerator.save_state``."""
    accelerator: Any = module.Accelerator
    accelerator.save_state = in_section(accelerator.save_state, CHECKPOINT_SECTION, _saved_by_accelerate)


def hook_lightning(module: ModuleType) -> None:
    """``Trainer.save_checkpoint``, which ModelCheckpoint calls too."""
    trainer: Any = module.Trainer
    trainer.save_checkpoint = in_section(trainer.save_checkpoint, CHECKPOINT_SECTION, _saved_by_lightning)


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "transformers.trainer": hook_transformers,
    "accelerate.accelerator": hook_accelerate,
    "lightning.pytorch.trainer.trainer": hook_lightning,
    "pytorch_lightning.trainer.trainer": hook_lightning,
}


def _saved_by_transformers(args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
    trainer = args[0]
    if trainer.args.should_save:  # this rank wrote trainer_state.json, the last file
        folder = trainer._get_output_dir(trial=kwargs.get("trial", args[2] if len(args) > 2 else None))
        step = trainer.state.global_step
        tell_checkpoint("transformers", os.path.join(folder, f"checkpoint-{step}"), step)


def _saved_by_accelerate(args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
    if args[0].is_main_process and isinstance(result, (str, os.PathLike)):
        tell_checkpoint("accelerate", os.fspath(result), CLIENT.step)


def _saved_by_lightning(args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
    trainer = args[0]
    writer = type(trainer.strategy.checkpoint_io)
    # AsyncCheckpointIO goes on writing after the call, and tells nobody when it is done.
    if trainer.is_global_zero and not any(base.__name__ == "AsyncCheckpointIO" for base in writer.__mro__):
        path = kwargs.get("filepath", args[1] if len(args) > 1 else "")
        tell_checkpoint("lightning", os.fspath(path), trainer.global_step)
