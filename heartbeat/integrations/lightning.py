"""For Lightning, under its new or its old name: ``Trainer(callbacks=[HeartbeatCallback()])``."""

from __future__ import annotations

from typing import Any

from ftlaunch import heartbeat

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback


class HeartbeatCallback(Callback):  # type: ignore[misc]
    """Beats with ``trainer.global_step`` and puts validation, test and prediction into the section ``eval``."""

    def __init__(self) -> None:
        super().__init__()
        self._open: list[heartbeat.Section] = []

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """After each batch; the step number changes with each optimizer step."""
        heartbeat.beat(trainer.global_step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first batch of a validation, the sanity check's included."""
        self._open.append(heartbeat.section("eval").__enter__())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """After a validation."""
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """After each batch of a validation."""
        heartbeat.beat()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The loop was left by an exception: no section of it is open any more."""
        while self._open:
            self._open.pop().__exit__(None, None, None)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
