"""The formats by name, and which of them an entry is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch.launcher.checkpoints import custom, dcp, folder, hf, lightning, megatron, nemo, safetensors, torchsave
from ftlaunch.launcher.checkpoints.files import Entry, Facts
from ftlaunch.launcher.checkpoints.names import TORCH_SUFFIXES

AUTO = "auto"
CUSTOM = "custom"


@dataclass(frozen=True)
class Format:
    """How one format is recognised (cheap, from names) and verified (raises ``Incomplete``)."""

    name: str
    recognise: Callable[[Entry], bool]
    verify: Callable[[Entry], Facts]


def _is_torch_file(entry: Entry) -> bool:
    # A file that has no suffix at all is one of torch.save if anything; its first bytes will tell.
    return not entry.is_dir and (entry.name.endswith(TORCH_SUFFIXES) or "." not in entry.name)


def _is_safetensors(entry: Entry) -> bool:
    return not entry.is_dir and entry.name.endswith(".safetensors")


DCP = Format("dcp", dcp.recognise, dcp.verify)
HF = Format("hf", hf.recognise, hf.verify)
LIGHTNING = Format("lightning", lightning.recognise, lightning.verify)
MEGATRON = Format("megatron", megatron.recognise, megatron.verify)
NEMO = Format("nemo", nemo.recognise, nemo.verify)
TORCH = Format("torch", _is_torch_file, torchsave.verify)
FOLDER = Format("torch", folder.recognise, folder.verify)
SAFETENSORS = Format("safetensors", _is_safetensors, safetensors.verify)
ANY = Format("custom", lambda _entry: True, custom.verify_any)

# What a name tells for certain comes before what it only allows; whoever looks inside subdirectories comes last.
CHOICES: dict[str, tuple[Format, ...]] = {
    AUTO: (HF, MEGATRON, NEMO, DCP, LIGHTNING, TORCH, SAFETENSORS, FOLDER),
    "dcp": (DCP,),
    "torch": (TORCH, SAFETENSORS, FOLDER),
    "hf": (HF,),
    "lightning": (LIGHTNING,),
    "megatron": (MEGATRON,),
    "nemo": (Format("nemo", nemo.accepts, nemo.verify),),
    CUSTOM: (ANY,),
}


def format_of(entry: Entry, choice: str) -> Format | None:
    """The first format of ``choice`` that recognises the entry. Raises :class:`KeyError` for an unknown choice."""
    return next((fmt for fmt in CHOICES[choice] if fmt.recognise(entry)), None)
