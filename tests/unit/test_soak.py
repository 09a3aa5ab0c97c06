"""The soak's plan is a function of its seed, and its looking sees what it is to see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soak_lib import watch
from soak_lib.plan import NODES, RANKS, Deed, describe, draw
from soak_lib.watch import WINDOW_S, Gauges, Generations, growth
from support.waiting import wait_until

TEN_MINUTES_S = 600.0


@pytest.mark.parametrize("seed", range(20))
def test_same_seed_gives_the_same_plan_and_every_deed_is_in_ten_minutes(seed: int) -> None:
    plan = draw(seed, TEN_MINUTES_S)
    assert plan == draw(seed, TEN_MINUTES_S) != draw(seed + 1, TEN_MINUTES_S)
    assert {strike.deed for strike in plan} == set(Deed)
    assert [strike.number for strike in plan] == list(range(1, len(plan) + 1))
    assert [strike.at_s for strike in plan] == sorted(strike.at_s for strike in plan)
    assert all(strike.node < NODES and strike.local_rank < RANKS and strike.at_s < TEN_MINUTES_S for strike in plan)
    assert sum(bool(strike.during) for strike in plan) > 5, "faults during recoveries"
    assert len(describe(plan)) == len(plan)


def test_agent_of_node_0_is_left_alone_in_the_later_part() -> None:
    ends = [strike for strike in draw(7, TEN_MINUTES_S) if strike.deed in (Deed.AGENT_KILL, Deed.NODE_LOSS)]
    assert {strike.node for strike in ends if strike.at_s > TEN_MINUTES_S / 2} == {1}


def lived(*floors: float) -> list[tuple[float, float]]:
    """Two samples in each window, the first one higher."""
    starts = [number * WINDOW_S for number in range(len(floors))]
    pairs = [((at, floor + 30), (at + 1.0, floor)) for at, floor in zip(starts, floors, strict=True)]
    return [sample for pair in pairs for sample in pair]


def test_leak_is_told_from_ups_and_downs() -> None:
    assert growth(lived(20, 30, 22, 30, 21, 30, 22, 30, 25)) == (30, 30)
    assert growth(lived(*range(20, 33))) == (25, 31)
    assert growth(lived(20, 90)) is None
    gauges = Gauges()
    for at, value in lived(*range(20, 60, 3)):
        gauges.add("node 0", "descriptors", at, value)
    assert gauges.check("descriptors").violations == ["node 0: descriptors from 35 to 56, allowed are 8 more"]
    assert gauges.check("threads").ok


def test_ranks_of_two_generations_at_once_are_seen() -> None:
    with subprocess.Popen(["sleep", "600"]) as old, subprocess.Popen(["sleep", "600"]) as new:
        try:
            generations = Generations()
            generations.note({"generation": 3, "pids": [old.pid]})
            assert generations.look() == ""
            generations.note({"generation": 4, "pids": [new.pid]})
            assert f"pid {old.pid} of generation 3" in generations.look()
            old.kill()
            wait_until(lambda: generations.look() == "")
        finally:
            old.kill()
            new.kill()


def test_step_of_a_dead_generation_is_seen(tmp_path: Path) -> None:
    def write(rank: int, *lines: tuple[int, int, float]) -> None:
        text = [json.dumps({"step": step, "generation": generation, "at": at}) for step, generation, at in lines]
        (tmp_path / f"steps-{rank}.jsonl").write_text("\n".join([*text, '{"step": 7, "gene']))

    write(0, (1, 0, 1.0), (2, 0, 2.0), (2, 1, 4.0))
    write(1, (1, 0, 1.1), (2, 0, 2.1), (2, 1, 3.9))
    assert watch.dead_steps(tmp_path).ok
    write(1, (1, 0, 1.1), (3, 0, 4.1))
    assert len(watch.dead_steps(tmp_path).violations) == 1


def test_only_an_agents_own_traceback_counts(tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    output.write_text("[default0]:Traceback (most recent call last):\n[ftlaunch] fine\n")
    assert watch.outbursts([output]).ok
    output.write_text("fine\nTraceback (most recent call last):\n")
    assert watch.outbursts([output]).violations == [f"{output}, line 2: Traceback (most recent call last):"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--minutes", "0"], "from 0.1"), (["--seed", "x"], "invalid int"), (["--out", "."], "not empty")],
)
def test_wrong_command_line_is_told(arguments: list[str], told: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "soak_lib", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2 and told in done.stderr
