"""What a name tells of a checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.launcher.checkpoints import names

STEPS = [
    ("iter_0000100", 100),
    ("global_step100", 100),
    ("step_11", 11),
    ("step-9", 9),
    ("1000steps.pt", 1000),
    ("checkpoint-500", 500),
    ("ckpt-100.pt", 100),
    ("checkpoint0005.pth", 5),
    ("model_1000.pth", 1000),
    ("model.100.pt", 100),
    ("100.pt", 100),
    ("epoch=1-step=1000.ckpt", 1000),
    ("epoch=3-val_loss=0.12.ckpt", 3),
    ("checkpoint_epoch_7.pth.tar", 7),
    ("epoch_3_5000.pt", 5000),
    ("llama-2_epoch_3.pt", 3),
    ("llama-2-7b-checkpoint-500", 500),
    ("gpt2-124m-5000.pt", 5000),
    ("ft-v2-step5.pt", 5),
    ("step_100_rank3.pt", 100),
    ("model--val_loss=2.31-step=100-consumed_samples=800.0-last", 100),
    ("tmp_12", 12),
    ("ckpt.pt", None),
    ("last.ckpt", None),
    ("last-v1.ckpt", None),
    ("mp_rank_00", None),
    ("ckpt_best_0.93.pt", None),
    # Two numbers that could both be it: not for us to guess.
    ("ckpt_3_5000.pt", None),
    ("2024-06-01_12-00-00.pt", None),
    ("iter_9999999999999999999", None),
    ("step=²", None),
    ("", None),
]


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_the_step_is_found_by_meaning_not_by_place(name: str, step: int | None) -> None:
    assert names.step_of(name) == step


def test_an_epoch_is_known_as_one() -> None:
    assert names.step_is_epoch("epoch=3.ckpt")
    assert not names.step_is_epoch("epoch=3-step=100.ckpt")


TEMPORARY = (
    "tmp_12 step_5.tmp .tmp-5 tmp-checkpoint-5 ckpt.pt~ a.partial step_5.tmp.123 ckpt_5.tmp.pt step_5.inprogress "
    "step=100-last-unfinished step_5.incomplete model.pt.part .tmpcbnf2J"
)


@pytest.mark.parametrize("name", TEMPORARY.split())
def test_temporary_names(name: str) -> None:
    assert names.is_temporary(name)


@pytest.mark.parametrize("name", ["template_5.pt", "temporal_5.pt", "attempt_5", "step_5", "stamp_5.pt", "part_5.pt"])
def test_names_that_only_look_temporary(name: str) -> None:
    assert not names.is_temporary(name)


def test_files_of_one_kind_have_one_template() -> None:
    assert names.template_of("epoch=1-val_loss=0.31-step=10.ckpt") == names.template_of(
        "epoch=2-val_loss=0.2-step=20.ckpt"
    )
    assert names.template_of("step_10_rank0.pt") != names.template_of("step_10_rank1.pt")
    assert names.template_of("model_10.pt") != names.template_of("optim_10.pt")


@given(st.text(alphabet=st.characters(codec=None), max_size=60))
def test_any_name_is_survived(name: str) -> None:
    step = names.step_of(name)
    assert step is None or 0 <= step < 1 << 63
    names.template_of(name)
    names.is_temporary(name)
