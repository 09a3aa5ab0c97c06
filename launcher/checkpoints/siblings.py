"""What only shows against the other checkpoints: a file that most of them have, files that are one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from ftlaunch.launcher.checkpoints import names
from ftlaunch.launcher.checkpoints.model import Candidate, Skipped, show


@dataclass(frozen=True)
class Found:
    """A complete entry, before it is compared with the others."""

    candidate: Candidate
    name: str
    is_dir: bool
    parts: frozenset[str]

    @property
    def kind(self) -> str:
        """Only entries of one kind are compared: files with files, directories with those of like name and format."""
        return f"{self.candidate.format}:{names.template_of(self.name)}" if self.is_dir else "files"


def drop_lacking(found: list[Found]) -> tuple[list[Found], list[Skipped]]:
    """Take out the steps that lack something which more than half of the other steps of their kind have.

    ``model_100.pt`` without ``optim_100.pt``, a Trainer directory without its optimizer: killed between two files.
    """
    by_kind: dict[str, dict[int, frozenset[str]]] = {}
    for one in found:
        if one.candidate.step is not None:
            steps = by_kind.setdefault(one.kind, {})
            steps[one.candidate.step] = steps.get(one.candidate.step, frozenset()) | _parts(one)
    lacking = {(kind, step): part for kind, steps in by_kind.items() for step, part in _lacking(steps).items()}
    kept: list[Found] = []
    skipped: list[Skipped] = []
    for one in found:
        part = None if one.candidate.step is None else lacking.get((one.kind, one.candidate.step))
        if part is None:
            kept.append(one)
        else:
            skipped.append(Skipped(one.candidate.path, f"lacks {show(part)}, which most other checkpoints here have"))
    return kept, skipped


def one_per_file_group(found: list[Found]) -> list[Found]:
    """Of flat files of one step keep the one to name: ``model_100.pt`` rather than ``optim_100.pt``."""
    best: dict[int, Found] = {}
    for one in found:
        step = one.candidate.step
        if not one.is_dir and step is not None:
            best[step] = min(best.get(step, one), one, key=_preference)
    return [one for one in found if one.is_dir or one.candidate.step is None or best[one.candidate.step] is one]


def _preference(one: Found) -> tuple[bool, bool, str]:
    return names.is_secondary(one.name), names.is_extra(one.name), one.name


def _parts(one: Found) -> frozenset[str]:
    if one.is_dir:
        return one.parts
    # Found by content only (last.ckpt): says nothing of what the others should have.
    return frozenset() if names.step_of(one.name) is None else frozenset({names.template_of(one.name)})


def _lacking(steps: dict[int, frozenset[str]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for step, parts in steps.items():
        # Only those that share a part are of the same making: a_100.pt says nothing about b_200.pt.
        peers = [other for at, other in steps.items() if at != step and other & parts]
        candidates = frozenset().union(*peers) - parts
        for part in sorted(candidates):
            if not names.is_extra(part) and 2 * sum(part in other for other in peers) > len(peers):
                found[step] = part
                break
    # When none would be left the comparison itself is at fault.
    return found if len(found) < len(steps) else {}
