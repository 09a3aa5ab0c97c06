"""The samples taken so far, in one JSON file that is written after each of them, and what follows from them."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench_lib.contenders import Contender
from bench_lib.items import ITEMS, Item


@dataclass(frozen=True)
class Sample:
    """One sample; ``error`` says why there are no ``figures``. ``version``: the commit of ftlaunch at that time."""

    item: str
    contender: str
    repetition: int
    figures: dict[str, float]
    error: str = ""
    version: str = ""


class Results:
    """Samples with the machine and the settings they belong to."""

    def __init__(self, path: Path, about: dict[str, Any], samples: list[Sample]) -> None:
        self.path = path
        self.about = about
        self.samples = samples

    def has(self, item: str, contender: str, repetition: int) -> bool:
        """Return whether this sample was taken, successfully."""
        wanted = (item, contender, repetition)
        return any((s.item, s.contender, s.repetition) == wanted and not s.error for s in self.samples)

    def add(self, sample: Sample) -> None:
        """Add a sample of now in place of a former try, and write the file; an interrupted write leaves the old one."""
        key = (sample.item, sample.contender, sample.repetition)
        others = [s for s in self.samples if (s.item, s.contender, s.repetition) != key]
        self.samples = [*others, replace(sample, version=_version(self.about))]
        self.write()

    def forget(self, items: Sequence[str]) -> None:
        """Drop all samples of ``items``."""
        self.samples = [sample for sample in self.samples if sample.item not in items]

    def values(self, item: str, contender: str, figure: str) -> list[float]:
        """Return all values of one figure."""
        chosen = (s for s in self.samples if s.item == item and s.contender == contender)
        return [sample.figures[figure] for sample in chosen if figure in sample.figures]

    def median(self, item: str, contender: str, figure: str) -> float | None:
        """Return the median of one figure, ``None`` without any sample."""
        values = self.values(item, contender, figure)
        return statistics.median(values) if values else None

    def versions(self) -> str:
        """Return what was measured; where versions of ftlaunch differ, each with its items."""
        items: dict[str, set[str]] = {}
        for sample in self.samples:
            if sample.contender.startswith("ftlaunch") and sample.version and not sample.error:
                items.setdefault(sample.version, set()).add(sample.item)
        told = dict(self.about["versions"])
        if items:
            each = [f"{version} ({', '.join(sorted(letters))})" for version, letters in items.items()]
            told["ftlaunch"] = "; ".join(each) if len(items) > 1 else next(iter(items))
        return ", ".join(f"{name} {version}" for name, version in told.items())

    def paired(self, item: Item) -> list[float]:
        """Return the first contender's value over the second's, for each two samples that were taken side by side."""
        first, second = ({s.repetition: s for s in self._of(item, contender)} for contender in item.contenders[:2])
        both = sorted(first.keys() & second.keys())
        return [first[number].figures[item.key] / second[number].figures[item.key] for number in both]

    def _of(self, item: Item, contender: Contender) -> list[Sample]:
        chosen = (s for s in self.samples if (s.item, s.contender) == (item.letter, contender.name))
        return [sample for sample in chosen if item.key in sample.figures]

    def write(self) -> None:
        """Write samples and medians."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "about": self.about,
            "medians": {item.letter: self._medians(item) for item in ITEMS},
            "samples": [asdict(sample) for sample in self.samples],
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(part, self.path)

    def _medians(self, item: Item) -> dict[str, dict[str, float]]:
        table: dict[str, dict[str, float]] = {}
        for contender in item.contenders:
            chosen = [s for s in self.samples if (s.item, s.contender) == (item.letter, contender.name)]
            names = sorted({name for sample in chosen for name in sample.figures})
            table[contender.name] = {
                name: round(statistics.median(self.values(item.letter, contender.name, name)), 4) for name in names
            }
        return table


def load(path: Path, about: dict[str, Any]) -> Results:
    """Read the file if there is one; what it says about the machine is replaced by ``about``, its samples stay."""
    if not path.exists():
        return Results(path, about, [])
    document = json.loads(path.read_text())
    former = {"version": _version(document["about"])}
    return Results(path, {**document["about"], **about}, [Sample(**former | each) for each in document["samples"]])


def _version(about: dict[str, Any]) -> str:
    return str(about["versions"].get("ftlaunch", ""))


def machine() -> dict[str, Any]:
    """Return what the numbers depend on, apart from the software under test."""
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": cpus[0].partition(":")[2].strip() if cpus else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.split()[1]) * 1024 / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def lines(results: Results, items: Sequence[Item]) -> list[str]:
    """Return the table: a block per item, a line per contender, ratios to the first one."""
    about = results.about
    text = [
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}, "
        f"Python {about['python']}, {results.versions()}"
    ]
    for item in items:
        text += ["", f"({item.letter}) {item.title}"]
        base = results.median(item.letter, item.contenders[0].name, item.key)
        for contender in item.contenders:
            text.append(_line(results, item, contender.name, base))
    return text


def _line(results: Results, item: Item, name: str, base: float | None) -> str:
    values = results.values(item.letter, name, item.key)
    failed = [s for s in results.samples if s.item == item.letter and s.contender == name and s.error]
    trouble = f"   {len(failed)} failed: {failed[-1].error[:90]}" if failed else ""
    if not values:
        return f"    {name:22} {'-':>9}{trouble}"
    middle = statistics.median(values)
    ratio = f"{middle / base:7.2f}x" if base else " " * 8
    others = {figure: results.median(item.letter, name, figure) for s in results.samples for figure in s.figures}
    rest = "  ".join(
        f"{figure}={value:.4g}"
        for figure, value in others.items()
        if value is not None and figure != item.key and (not item.shown or figure in item.shown)
    )
    spread = f"[{min(values):.4g} … {max(values):.4g}] n={len(values)}"
    return f"    {name:22} {middle:9.3f} {item.unit:3} {ratio}  {spread:28} {rest}{trouble}"
