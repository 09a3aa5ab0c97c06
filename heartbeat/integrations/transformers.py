"""For the Hugging Face Trainer: ``Trainer(..., callbacks=[HeartbeatCallback()])``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ftlaunch import heartbeat


class HeartbeatCallback(TrainerCallback):  # type: ignore[misc]
    """Beats with ``state.global_step`` and puts evaluation and prediction into the section ``eval``."""

    def __init__(self) -> None:
        self._eval: heartbeat.Section | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After each optimizer step."""
        self._leave()
        heartbeat.beat(state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After each batch of an evaluation; the Trainer has no event for its beginning."""
        if self._eval is None:
            self._eval = heartbeat.section("eval").__enter__()
        heartbeat.beat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After an evaluation."""
        self._leave()

    def on_predict(self, args: Any, state: Any, control: Any, *metrics: Any, **kwargs: Any) -> None:
        """After a prediction."""
        self._leave()

    def _leave(self) -> None:
        if self._eval is not None:
            self._eval.__exit__(None, None, None)
            self._eval = None
