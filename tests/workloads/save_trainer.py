"""A tiny GPT-2 with the Hugging Face Trainer; dropout, so that the random state of every rank counts."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import lives


class Texts(torch.utils.data.Dataset):
    """Random texts, always the same."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Notes(TrainerCallback):
    """Writes down what happens."""

    def on_train_begin(self, args, state, control, **kwargs):
        lives.begin(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        lives.made(state.global_step)


torch.manual_seed(0)
sizes = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    str(lives.saved),
    max_steps=lives.steps,
    save_steps=lives.every,
    per_device_train_batch_size=2,
    use_cpu=True,
    ddp_backend="gloo",
    report_to=[],
    logging_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=[Notes()])
trainer.train(resume_from_checkpoint=lives.resume_from)
lives.end(trainer.state.global_step, model.state_dict().values())
