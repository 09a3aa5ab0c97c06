"""A small model with Lightning's Trainer and ModelCheckpoint."""

from __future__ import annotations

import os

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import lives


class Model(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 4))

    def training_step(self, batch, index):
        # By the step: Lightning begins with the first batch again when it resumes in the middle of an epoch.
        seed = self.global_step * 2 + self.global_rank
        batch = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
        return self.net(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Notes(Callback):
    """Writes down what happens."""

    def on_train_start(self, trainer, module):
        lives.begin(trainer.global_step)

    def on_train_batch_end(self, trainer, *args):
        lives.made(trainer.global_step)


lightning.seed_everything(0)
saver = ModelCheckpoint(lives.saved, every_n_train_steps=lives.every, save_top_k=-1, save_last=True)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=lives.steps,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[Notes(), saver],
)
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(range(200)), ckpt_path=lives.resume_from)
lives.end(trainer.global_step, model.state_dict().values())
