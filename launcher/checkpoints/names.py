"""What a name tells: the step, that it is temporary, that it is a pointer. Pure text, no file is touched."""

from __future__ import annotations

import re

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pth.tar", ".pt.tar")
FILE_SUFFIXES = (*TORCH_SUFFIXES, ".safetensors", ".nemo")
UNFINISHED = "-unfinished"
MAX_DIGITS = 18
"""Longer numbers are hashes or time stamps, and a step has to fit a signed 64-bit field on the wire."""

# A number that is no part of a decimal fraction (loss=0.25). Neighbouring letters are judged in _mark.
_NUMBER = re.compile(r"(?<![0-9])(?<![0-9]\.)([0-9]+)(?![0-9])(?!\.[0-9])")
_END = r"[=_\-. ]*$"
_STEP_BEFORE = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?(?:steps?|iters?|iterations?|it|updates?)" + _END, re.I)
_STEP_AFTER = re.compile(r"^[_\-. ]?(?:steps?|iters?|iterations?|updates?)(?![a-z])(?![=_\-. ]*[0-9])", re.I)
_CHECKPOINT_BEFORE = re.compile(r"(?:^|[^a-z])(?:checkpoint|ckpt|ckp|chkpt|cp|snapshot)" + _END, re.I)
_EPOCH_BEFORE = re.compile(r"(?:^|[^a-z])(?:epochs?|ep|e)" + _END, re.I)
_NO_STEP_BEFORE = re.compile(
    r"(?:^|[^a-z])(?:rank|shard|part|seed|of|mp|tp|pp|dp|world|worker|node|gpu|version|run|fold|loss|acc|samples)"
    + _END,
    re.I,
)
_LETTER_BEFORE = re.compile(r"[A-Za-z]$")
_LETTER_AFTER = re.compile(r"^[A-Za-z]")

_VALUE = re.compile(r"(?<![0-9])(?<!rank)(?<!rank[_=-])(?<!shard[_=-])(?<!part[_=-])[0-9]+(?:\.[0-9]+)?")

_UNDONE = r"(?:tmp|temp|temporary|partial|incomplete|inprogress|in[_-]progress|writing|staging|unfinished)"
# The six letters are those of safetensors, which writes beside the file and renames.
_TEMPORARY = re.compile(
    rf"^\.?{_UNDONE}(?:[._\-0-9]|$)|^\.tmp[a-z0-9]{{6}}$|[._\-]tmp[._\-]|[._\-]{_UNDONE}\d*(?:\.[a-z]+)?$|\.part$|~$",
    re.I,
)
_NEWEST = re.compile(r"(?:^|[^a-z])(?:last|latest|current|newest)(?:[^a-z]|$)", re.I)
_PLAIN = re.compile(r"(?:^|[^a-z])(?:ckpt|ckp|checkpoint|snapshot|resume)(?:[^a-z]|$)", re.I)
_BARE = re.compile(r"(?:^|[^a-z])(?:ckpt|ckp|checkpoint|snapshot|model|step|iter|epoch|last|latest)(?:[^a-z]|$)", re.I)
_SECONDARY = re.compile(r"optim|sched|scaler|rng|random|ema|loader|sampler", re.I)
_EXTRA = re.compile(r"best|top|final", re.I)

_STEP, _CHECKPOINT, _PLAIN_NUMBER, _EPOCH = range(4)


def is_temporary(name: str) -> bool:
    """Whether the name says that the writer was not done: ``tmp_12``, ``step_5.tmp``, ``x-unfinished``, ``a.pt~``."""
    return _TEMPORARY.search(name) is not None


def is_newest_by_name(name: str) -> bool:
    """``last.ckpt``, ``latest``: the writer replaces it again and again, so its age says how new it is."""
    return _NEWEST.search(strip_suffix(name)) is not None


def is_plain(name: str) -> bool:
    """``ckpt.pt``, ``checkpoint.pt``: the only checkpoint of a script that overwrites it in place."""
    return _PLAIN.search(strip_suffix(name)) is not None


def is_secondary(name: str) -> bool:
    """``optim_100.pt``: goes with a checkpoint, is not the one to name."""
    return _SECONDARY.search(name) is not None


def is_extra(name: str) -> bool:
    """``best_100.pt``: written at some steps only, so no other step lacks it."""
    return _EXTRA.search(name) is not None


def may_be_file(name: str) -> bool:
    """Whether a plain file of this name may be a checkpoint: by its suffix, or ``ckpt_100`` without any."""
    return name.endswith(FILE_SUFFIXES) or ("." not in name and _BARE.search(name) is not None)


def mentions_suffix(name: str) -> bool:
    """Whether a suffix of checkpoint files stands anywhere in the name: ``ckpt.pt.tmp``."""
    return any(suffix in name for suffix in FILE_SUFFIXES)


def strip_suffix(name: str) -> str:
    """The name without the suffixes of checkpoint files."""
    lowered = name.lower()
    for suffix in (".tar", *FILE_SUFFIXES):
        if lowered.endswith(suffix) and len(lowered) > len(suffix):
            name = name[: -len(suffix)]
            lowered = name.lower()
    return name


def step_of(name: str) -> int | None:
    """The step in a name: ``iter_0000100``, ``epoch=1-step=1000.ckpt``, ``ckpt-100.pt``, ``model_1000.pth``.

    A number marked as a step counts first, then one behind a word for checkpoint, then the only other number, then an
    epoch. ``None`` when there is none, or when several are equally likely.
    """
    span = step_span(name)
    return None if span is None else int(name[span[0] : span[1]])


def step_is_epoch(name: str) -> bool:
    """Whether :func:`step_of` had only an epoch to go by."""
    span = step_span(name)
    stem = strip_suffix(name)
    return span is not None and _mark(stem[: span[0]], stem[span[1] :]) == _EPOCH


def template_of(name: str) -> str:
    """The name without its step, losses and the like: files of one kind at different steps have the same template.

    The number of a rank or a shard stays: each of them is a kind of its own.
    """
    span = step_span(name)
    if span is None:
        return name
    return f"{_VALUE.sub('#', name[: span[0]])}{{step}}{_VALUE.sub('#', name[span[1] :])}"


def part_of(name: str, step: int | None) -> str:
    """A file name inside a checkpoint, comparable with those inside checkpoints of other steps."""
    if step is None:
        return name
    return re.sub(r"[0-9]+", lambda m: "{step}" if int(m.group()) == step != 0 else m.group(), name)


def step_span(name: str) -> tuple[int, int] | None:
    """Where in the name the step stands, see :func:`step_of`."""
    stem = strip_suffix(name)
    found: dict[int, list[tuple[int, int]]] = {}
    for match in _NUMBER.finditer(stem):
        mark = _mark(stem[: match.start()], stem[match.end() :])
        if mark is not None and match.end() - match.start() <= MAX_DIGITS:
            found.setdefault(mark, []).append(match.span())
    if _STEP in found:
        return found[_STEP][0]
    return _unmarked_step(found)


def _unmarked_step(found: dict[int, list[tuple[int, int]]]) -> tuple[int, int] | None:
    epochs = found.get(_EPOCH, [])
    # A number in front of the epoch belongs to the name of the model: llama-2_epoch_3.
    plain = [span for span in found.get(_PLAIN_NUMBER, []) if not epochs or span > epochs[0]]
    marked = found.get(_CHECKPOINT, [])
    if marked:
        # ckpt_3_5000 may be epoch and step, or part and step: not for us to guess.
        return marked[0] if len(marked) == 1 and not any(span > marked[0] for span in plain) else None
    if plain:
        return plain[0] if len(plain) == 1 else None
    return epochs[0] if epochs else None


def _mark(before: str, after: str) -> int | None:
    if _STEP_BEFORE.search(before) or _STEP_AFTER.search(after):
        return _STEP
    if _LETTER_AFTER.search(after):
        return None
    if _CHECKPOINT_BEFORE.search(before):
        return _CHECKPOINT
    if _EPOCH_BEFORE.search(before):
        return _EPOCH
    if _NO_STEP_BEFORE.search(before) or _LETTER_BEFORE.search(before):
        return None
    return _PLAIN_NUMBER
