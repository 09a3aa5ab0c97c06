"""Write docs/cases.md from tests/cases/reports.ini: ``python scripts/write_cases.py``."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "cases.md"
SOURCE = ROOT / "tests" / "cases" / "reports.ini"
GROUPS = {
    "A": "Process tree and cleanup",
    "B": "GPU memory",
    "C": "Signals and graceful shutdown",
    "D": "Exit codes and failure reports",
    "E": "Restarts",
    "F": "Heartbeats and stalls",
    "R": "Rendezvous, network, ports",
    "S": "etcd",
    "L": "Output and logs",
    "H": "Command line and environment",
    "J": "Resuming from checkpoints",
}
RESULTS = {
    "holds": "as it should be",
    "part": "as it should be, in part",
    "differs": "differs on purpose",
}
HEAD = """\
# What users of launchers reported, and what ftlaunch does

Written from `tests/cases/reports.ini` by `scripts/write_cases.py`.

Every row is something that happened to users of torchrun, DLRover, NVIDIA's launcher, accelerate and their kind, told
in a public issue. The tests assert the right behaviour, so a row holds as long as they pass; that each of them exists
is checked. Tests named `test_A1_...` belong to the case of that name.
"""


@dataclass(frozen=True)
class Case:
    """One reported case. ``tests`` are node ids without parameters."""

    name: str
    reported: str
    link: str
    result: str
    note: str
    tests: tuple[str, ...]


def read_cases(source: Path = SOURCE) -> list[Case]:
    """All cases in the order of the file, each with its tests: those given there, and those of its name."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(source.read_text(encoding="utf-8"))
    named = tests_by_case(all_tests())
    return [_case(name, parser[name], named.get(name, ())) for name in parser.sections()]


def all_tests() -> list[str]:
    """Node ids of all tests, without parameters, by reading the sources."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [f"{path.relative_to(ROOT).as_posix()}::{name}" for path in files for name in _tests_in(path)]


def tests_by_case(tests: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Those whose names say a case: ``test_A1_A2_nothing_is_left`` belongs to two."""
    found: dict[str, tuple[str, ...]] = {}
    for test in tests:
        prefix = re.match(r"test_((?:[A-Z]\d+_)+)", test.rpartition("::")[2])
        for name in prefix[1].rstrip("_").split("_") if prefix else ():
            found[name] = (*found.get(name, ()), test)
    return found


def text(cases: Sequence[Case]) -> str:
    """Return the page."""
    return HEAD + "".join(line for letter, title in GROUPS.items() for line in _group(letter, title, cases))


def _case(name: str, facts: Mapping[str, str], named: Sequence[str]) -> Case:
    given = facts.get("test", "").split()
    return Case(
        name,
        facts["reported"],
        facts["link"],
        facts["result"],
        facts.get("note", ""),
        tuple(dict.fromkeys([*named, *given])),
    )


def _tests_in(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{inner.name}" for inner in node.body if _is_test(inner))
        elif _is_test(node):
            yield node.name


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def _group(letter: str, title: str, cases: Sequence[Case]) -> Iterator[str]:
    yield f"\n## {letter}. {title}\n\n| case | what was reported | test | result |\n|---|---|---|---|\n"
    for case in cases:
        if case.name[0] == letter:
            result = f"**{RESULTS[case.result]}**. {case.note}" if case.note else RESULTS[case.result]
            tests = "<br>".join(f"`{test}`" for test in map(_short, case.tests))
            yield f"| {case.name} | {case.reported} [report]({case.link}) | {tests} | {result} |\n"


def _short(test: str) -> str:
    return test.removeprefix("tests/")


if __name__ == "__main__":
    TARGET.write_text(text(read_cases()), encoding="utf-8")
