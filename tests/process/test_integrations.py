"""The callbacks for frameworks, driven through their events by stand-ins for the frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.heartbeat.wire import Kind
from support import ranks

TRANSFORMERS = """
import types
from ftlaunch.heartbeat.integrations.transformers import HeartbeatCallback
callback, args = HeartbeatCallback(), None
state = types.SimpleNamespace(global_step=1)
for event in ("step_end", "prediction_step", "prediction_step", "evaluate", "prediction_step", "step_end"):
    getattr(callback, f"on_{event}")(args, state, None, logs=None)
callback.on_prediction_step(args, state, None)
callback.on_predict(args, state, None, {"metric": 1})
"""
LIGHTNING = """
import types
from ftlaunch.heartbeat.integrations.lightning import HeartbeatCallback
callback, trainer = HeartbeatCallback(), types.SimpleNamespace(global_step=1)
callback.on_train_batch_end(trainer, None, None, None, 0)
for kind in ("validation", "test", "predict"):
    getattr(callback, f"on_{kind}_start")(trainer, None)
    getattr(callback, f"on_{kind}_batch_end")(trainer, None, None, None, 0)
    getattr(callback, f"on_{kind}_end")(trainer, None)
callback.on_validation_start(trainer, None)
callback.on_exception(trainer, None, ValueError())
callback.on_validation_end(trainer, None)
"""


def told(agent: ranks.Agent, folder: Path, script: str) -> list[object]:
    (folder / "train.py").write_text(script)
    done = agent.run("script", "train.py", cwd=folder)
    assert done.code == 0, done.err
    found: list[object] = []
    for message in agent.receive():
        if message.kind is Kind.SECTION:
            found.append("/".join(message.payload["sections"]))
        elif message.kind is Kind.BEAT:
            found.append(message.step)
    return found


def test_transformers_callback(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("class TrainerCallback: pass")
    evaluation = ["eval", None, None, ""]
    assert told(agent, tmp_path, TRANSFORMERS) == [1, *evaluation, "eval", None, "", 1, "eval", None, ""]


@pytest.mark.parametrize("name", ["lightning/pytorch", "pytorch_lightning"])
def test_lightning_callback(agent: ranks.Agent, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "callbacks.py").write_text("class Callback: pass")
    evaluation = ["eval", None, ""]
    assert told(agent, tmp_path, LIGHTNING) == [1, *evaluation, *evaluation, *evaluation, "eval", ""]
