"""The rank's side of a drill: faults come at their step, once, and only from a directory that nobody else can write."""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ftlaunch.heartbeat import drill
from ftlaunch.heartbeat.client import BEAT, HELLO, TICK, Client
from ftlaunch.launcher.drill.board import Board, open_board
from ftlaunch.launcher.drill.plan import Fault, Kind, PlanError
from ftlaunch.launcher.drill.steps import account


class Said(Client):
    """A client that keeps what it is to tell."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Mapping[str, Any]] = []

    def tell(self, kind: int, payload: dict[str, object]) -> bool:
        assert kind == HELLO
        self.told.append(payload)
        return True


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return open_board(str(tmp_path / "board"))


def rank(board: Board, number: int = 1) -> tuple[Any, Said]:
    """What is called after each step of a rank, and what it has told."""
    client = Said()
    drill.arm(str(board.folder), {"RANK": str(number), "FTLAUNCH_GENERATION": "0"}, client)
    return client.after_step, client


def test_a_fault_comes_at_its_step_and_once(board: Board) -> None:
    board.put(Fault(Kind.EXCEPTION, id="f", rank=1, at_step=3))
    step, client = rank(board)
    step(BEAT, 1)
    step(BEAT, 2)
    assert client.told == []
    with pytest.raises(drill.DrillFault, match="fault f"):
        step(BEAT, 3)
    assert [(told["phase"], told["fault"], told["kind"], told["step"]) for told in client.told] == [
        ("drill", "f", "exception", 3)
    ]
    again, client = rank(board)
    again(BEAT, 3)
    assert client.told == []


def test_a_step_that_was_left_out_does_not_lose_the_fault(board: Board) -> None:
    board.put(Fault(Kind.EXCEPTION, id="f", rank=1, at_step=3))
    step, _ = rank(board)
    with pytest.raises(drill.DrillFault):
        step(BEAT, 10)


def test_another_rank_goes_on(board: Board) -> None:
    board.put(Fault(Kind.EXCEPTION, id="f", rank=1, at_step=1))
    step, client = rank(board, 0)
    step(BEAT, 5)
    assert client.told == []


@pytest.mark.parametrize("kind", [BEAT, TICK])
def test_steps_are_counted_where_they_have_no_number(board: Board, kind: int) -> None:
    board.put(Fault(Kind.EXCEPTION, id="f", rank=1, at_step=2))
    step, _ = rank(board)
    step(kind, -1 if kind == BEAT else 1)
    with pytest.raises(drill.DrillFault):
        step(kind, -1 if kind == BEAT else 2)


def test_after_steps_counts_those_of_this_life(board: Board) -> None:
    board.put(Fault(Kind.EXCEPTION, id="f", rank=1, after_steps=2))
    step, _ = rank(board)
    step(BEAT, 500)
    with pytest.raises(drill.DrillFault):
        step(BEAT, 501)


def test_a_fault_may_come_later_and_be_withdrawn(board: Board) -> None:
    step, client = rank(board)
    step(BEAT, 1)
    board.put(Fault(Kind.EXCEPTION, id="f", rank=1, at_step=9))
    step(BEAT, 2)
    assert board.withdraw("f") and not board.withdraw("f")
    step(BEAT, 10)
    assert client.told == []
    board.put(Fault(Kind.KILL, id="m", rank=1), mark=True)
    step(BEAT, 11)
    assert [told["kind"] for told in client.told] == ["mark"]


def test_garbage_on_the_board_is_passed_over(board: Board) -> None:
    faults = board.folder / "faults"
    (faults / "a.json").write_text("{")
    (faults / "b.json").write_text("[]")
    (faults / "c.json").write_text(json.dumps({"rank": 1, "kind": "unheard of", "at_step": "x", "id": 7}))
    step, client = rank(board)
    step(BEAT, 1)
    assert [told["kind"] for told in client.told] == ["unheard of"]


def test_a_full_disk_is_a_limit_of_this_process(board: Board, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    board.put(Fault(Kind.DISK_FULL, id="f", rank=1, at_step=1))
    step, _ = rank(board)
    try:
        step(BEAT, 1)
        with pytest.raises(OSError, match="File too large"):
            (tmp_path / "checkpoint").write_text("x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_step_is_written_down_where_that_is_wanted(board: Board) -> None:
    step, _ = rank(board)
    step(BEAT, 1)
    assert board.read_ledger() == {}
    board.keep_ledger()
    step, _ = rank(board)
    for number in (1, 2, 3):
        step(BEAT, number)
    told = account(board.read_ledger())
    assert (told.known, told.made, told.problems) == (True, 3, ())


def test_a_directory_that_others_can_write_to_is_none(board: Board) -> None:
    board.folder.chmod(0o777)
    client = Said()
    drill.arm(str(board.folder), {"RANK": "1"}, client)
    assert client.after_step is None
    with pytest.raises(PlanError, match="nobody else can write to"):
        open_board(str(board.folder))


@pytest.mark.parametrize("environment", [{}, {"RANK": "x"}])
def test_a_process_that_is_no_rank_is_left_alone(board: Board, environment: dict[str, str]) -> None:
    client = Said()
    drill.arm(str(board.folder), environment, client)
    drill.arm(str(board.folder / "none"), {"RANK": "0"}, client)
    assert cast(Any, client.after_step) is None
