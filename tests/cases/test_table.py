"""Every reported case has a test that exists, and docs/cases.md says so."""

from __future__ import annotations

import re
from pathlib import Path

import write_cases

WANTED = {
    *("A1", "A2", "A3", "A5", "A6", "A7", "A9", "B1", "B2"),
    *("C1", "C2", "C3", "C4", "C7", "C8", "D1", "D2", "D3", "D4", "D5", "D6", "D8"),
    *("E1", "E2", "F1", "F2", "F3", "F4", "F5"),
    *("R1", "R2", "R4", "R5", "R6", "R7", "R9", "R10", "R11", "R13", "R14", "R15"),
    *("S1", "S2", "S3", "S4", "S5", "S6", "S8", "S9", "S10"),
    *("L1", "L3", "L4", "L5", "H1", "H3", "H4", "H5", "H6", "J1", "J3"),
}
CASES = write_cases.read_cases()
TESTS = set(write_cases.all_tests())


def test_every_case_has_a_test_and_every_test_is_there() -> None:
    assert {case.name for case in CASES} == WANTED
    assert [case.name for case in CASES if not case.tests] == []
    assert [test for case in CASES for test in case.tests if test not in TESTS] == []


def test_a_difference_is_explained_and_a_report_can_be_looked_up() -> None:
    for case in CASES:
        assert case.result in write_cases.RESULTS, case
        assert case.note or case.result not in ("differs", "part"), case
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", case.link), case
        assert case.reported.endswith(".") and "|" not in case.reported + case.note, case


def test_tests_of_this_folder_are_named_after_their_case() -> None:
    for test in sorted(TESTS):
        file, _, name = test.removeprefix("tests/cases/").partition("::")
        letter = re.match(r"test_([A-Z])_", file)
        if letter and "/" not in file:
            named = re.match(rf"test_({letter[1]}\d+(?:_[A-Z]\d+)*)_[a-z]", name)
            assert named and set(named[1].split("_")) <= WANTED, test


def test_the_page_is_current() -> None:
    page = Path(write_cases.TARGET).read_text(encoding="utf-8")
    assert page == write_cases.text(CASES), "run: .venv/bin/python scripts/write_cases.py"
