"""The callbacks for frameworks in the real frameworks: the script's own step numbers, and evaluation as a section."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.heartbeat.wire import Kind
from support import ranks

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from ftlaunch.heartbeat.integrations.transformers import HeartbeatCallback

sizes = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
texts = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 8
arguments = TrainingArguments("saved", max_steps=4, save_steps=4, eval_strategy="steps", eval_steps=2, report_to=[],
                              per_device_train_batch_size=2, use_cpu=True, ddp_backend="gloo", disable_tqdm=True)
trainer = Trainer(model, arguments, train_dataset=texts, eval_dataset=texts[:2], callbacks=[HeartbeatCallback()])
trainer.train()
trainer.predict(texts[:2])
"""
LIGHTNING = """
import lightning, torch
from ftlaunch.heartbeat.integrations.lightning import HeartbeatCallback

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)
    def training_step(self, batch, index):
        return self.net(batch).pow(2).mean()
    def validation_step(self, batch, index):
        self.net(batch)
    test_step = predict_step = validation_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def data():
    return torch.utils.data.DataLoader(torch.ones(4, 4))

trainer = lightning.Trainer(accelerator="cpu", max_steps=4, val_check_interval=2, logger=False,
                            enable_progress_bar=False, enable_model_summary=False, callbacks=[HeartbeatCallback()])
model = Model()
trainer.fit(model, data(), data())
for evaluate in (trainer.validate, trainer.test, trainer.predict):
    evaluate(model, data())
"""


def told(agent: ranks.Agent, folder: Path, script: str) -> tuple[list[int], list[str], list[tuple[object, ...]]]:
    """Steps of the beats, sections as they opened and closed, and checkpoints."""
    (folder / "train.py").write_text(script)
    alone = {"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = agent.run("script", "train.py", cwd=folder, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", **alone)
    assert done.code == 0, done.err
    messages = agent.receive()
    steps = [each.step for each in messages if each.kind is Kind.BEAT and each.step is not None]
    sections = ["/".join(each.payload["sections"]) for each in messages if each.kind is Kind.SECTION]
    saved = [each.payload for each in messages if each.kind is Kind.CHECKPOINT]
    return steps, sections, [(each["source"], each["step"]) for each in saved]


def count(sections: list[str], name: str) -> int:
    """How often it was opened; at the end none is open."""
    assert sections[-1] == ""
    return sum(now == name and before == "" for before, now in zip(["", *sections], sections, strict=False))


def test_transformers(agent: ranks.Agent, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    steps, sections, saved = told(agent, tmp_path, TRANSFORMERS)
    assert sorted(set(steps)) == [1, 2, 3, 4]
    assert count(sections, "eval") == 3, sections
    assert saved == [("transformers", 4)]


def test_lightning(agent: ranks.Agent, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    steps, sections, saved = told(agent, tmp_path, LIGHTNING)
    assert sorted(set(steps)) == [1, 2, 3, 4]
    # The sanity check, two validations in training, and one of each kind.
    assert count(sections, "eval") == 6, sections
    assert set(saved) == {("lightning", 2), ("lightning", 4)}
