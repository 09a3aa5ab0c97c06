"""``checkpoint-N`` directories of the Hugging Face Trainer: weights, optimizer, random state, trainer_state.json."""

from __future__ import annotations

from ftlaunch.launcher.checkpoints import dcp, folder, safetensors
from ftlaunch.launcher.checkpoints.files import Entry, Facts, Incomplete, look, read_json
from ftlaunch.launcher.checkpoints.model import show
from ftlaunch.launcher.checkpoints.names import step_of

STATE = "trainer_state.json"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "pytorch_model_fsdp.bin",
)
TRAINING_SUFFIXES = (".pt", ".pth", ".bin")
FSDP = ("pytorch_model_fsdp_", "optimizer_")
DEEPSPEED = "global_step"


def recognise(entry: Entry) -> bool:
    """By the Trainer's state file or by the directory's name."""
    return entry.is_dir and (STATE in entry.children or entry.name.startswith("checkpoint-"))


def verify(entry: Entry) -> Facts:
    """Complete when state, weights and everything else in it are whole. Raises :class:`Incomplete`."""
    step = _verify_state(entry)
    weights = _verify_weights(entry, step)
    parts = {STATE, *(name for name in weights if name.startswith("optimizer"))}
    for name in sorted(entry.children - weights):
        if name.endswith(TRAINING_SUFFIXES):
            safetensors.verify_weights(entry.child(name))
            # One per rank, a smaller world writes fewer; and the Trainer does without.
            if not name.startswith("rng_state"):
                parts.add(name)
    return Facts(step, frozenset(parts))


def _verify_state(entry: Entry) -> int:
    if STATE not in entry.children:
        raise Incomplete(f"has no {STATE}: the save did not finish")
    step = read_json(entry.child(STATE)).get("global_step")
    if type(step) is not int or step < 0:
        raise Incomplete(f"{STATE} tells no global_step")
    named = step_of(entry.name)
    if named is not None and named != step:
        raise Incomplete(f"{STATE} is of step {step}, the directory of step {named}")
    return step


def _verify_weights(entry: Entry, step: int) -> frozenset[str]:
    found: set[str] = set()
    for index in INDEXES:
        if index in entry.children:
            found |= {index, *safetensors.verify_index(entry.child(index))}
    for name in FILES:
        if name in entry.children:
            safetensors.verify_weights(entry.child(name))
            found.add(name)
    for name in sorted(entry.children):
        if name.startswith(FSDP) and "." not in name:
            _verify_sharded(entry, name)
            found.add(name)
        elif name == f"{DEEPSPEED}{step}":
            folder.verify_tree(entry.child(name), step)
            found.add(name)
    if not any(not name.startswith("optimizer") for name in found):
        raise Incomplete("holds no model weights")
    return frozenset(found)


def _verify_sharded(entry: Entry, name: str) -> None:
    try:
        dcp.verify(look(entry.child(name)))
    except Incomplete as error:
        raise Incomplete(f"{show(name)}: {error}") from None
