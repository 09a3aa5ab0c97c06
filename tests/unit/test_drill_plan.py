"""Plans: what can be read, what is refused and how, and that chance is the same for the same seed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.launcher.drill.plan import RANDOM, Fault, Kind, Place, Plan, PlanError, Range, join, make_random, settle
from ftlaunch.launcher.drill.plan import to_json as fault_to_json
from ftlaunch.launcher.drill.plan_file import fault_from, load, parse, parse_text, range_from

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"kind": "kill", "rank": 1, "step": 70}, Fault(Kind.KILL, rank=1, at_step=70)),
        ({"kind": "kill", "rank": "1", "at-step": "70"}, Fault(Kind.KILL, rank=1, at_step=70)),
        ({"kind": "disk_full", "rank": 0}, Fault(Kind.DISK_FULL, rank=0)),
        (
            {"kind": "stop", "rank": "random", "after_steps": "3..9"},
            Fault(Kind.STOP, rank=RANDOM, after_steps=Range(3, 9)),
        ),
        (
            {"kind": "kill", "rank": 0, "after": "500ms", "every": "1m", "times": 3},
            Fault(Kind.KILL, rank=0, after_s=0.5, every_s=60.0, times=3),
        ),
        ({"kind": "etcd-stop", "after": 2}, Fault(Kind.ETCD_STOP, after_s=2.0, hold_s=3.0)),
        ({"kind": "net-cut", "node": 1, "for": "4s"}, Fault(Kind.NET_CUT, node=1, hold_s=4.0)),
        (
            {"kind": "spin", "rank": 0, "detect": "3s", "recover": "10s", "id": "slow"},
            Fault(Kind.SPIN, id="slow", rank=0, detect_s=3.0, recover_s=10.0),
        ),
        (
            {"kind": ["kill", "stop"], "rank": 0},
            Fault(Kind.KILL, one_of=(Kind.KILL, Kind.STOP), rank=0),
        ),
    ],
)
def test_a_fault_is_read(shape: dict[str, Any], expected: Fault) -> None:
    assert fault_from(shape) == expected


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ("kill", "must be an object such as"),
        ({}, "'' is no kind of fault; known are kill, stop"),
        ({"kind": "explode"}, "'explode' is no kind of fault"),
        ({"kind": "kill"}, "kill happens to a rank: say which one"),
        ({"kind": "kill", "rank": -1}, "rank must be a whole number of at least 0, not '-1'"),
        ({"kind": "kill", "rank": True}, "rank must be a whole number"),
        ({"kind": "kill", "rank": 0, "node": 0}, "kill happens to a rank, not to a node"),
        ({"kind": "kill", "rank": 0, "setp": 3}, "unknown key 'setp'; known are kind,"),
        ({"kind": "kill", "rank": 0, "step": 3, "after": "3s"}, "only one of step, after_steps and after"),
        ({"kind": "kill", "rank": 0, "step": "9..3"}, "step 9..3 is empty"),
        ({"kind": "kill", "rank": 0, "step": 3, "times": 2}, "a step comes once"),
        ({"kind": "kill", "rank": 0, "step": 3, "every": 2}, "every goes by time"),
        ({"kind": "kill", "rank": 0, "times": 0}, "times must be a whole number of at least 1"),
        ({"kind": "kill", "rank": 0, "every": 1, "times": 10**9}, "times is at most 1000"),
        ({"kind": "kill", "rank": 0, "after": "soon"}, "after must be seconds or a number with a unit"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(shape: Any, complaint: str) -> None:
    with pytest.raises(PlanError) as caught:
        fault_from(shape, "fault 2")
    assert str(caught.value).startswith("fault 2: ") and complaint in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (None, "a plan is a list of faults"),
        ("kill", "a plan is a list of faults"),
        ({}, "at least one fault"),
        ([], "at least one fault"),
        ({"faults": [{"kind": "kill", "rank": 0}], "sed": 3}, "unknown key 'sed'"),
        ({"faults": [{"kind": "kill", "rank": 0}], "seed": "x"}, "seed must be a whole number"),
        ({"faults": [{"kind": "kill", "rank": 0}, {"kind": "x"}]}, "fault 2: 'x' is no kind"),
        ([{"kind": "kill", "rank": 0}] * 1001, "1001 faults, at most 1000"),
    ],
)
def test_plans_that_make_no_sense(shape: Any, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        parse(shape)


def test_a_fault_on_a_command_line() -> None:
    assert parse_text("kill:rank=1,step=70") == Fault(Kind.KILL, rank=1, at_step=70)
    assert parse_text(" agent-kill ") == Fault(Kind.AGENT_KILL)
    with pytest.raises(PlanError, match=r"'rank' is not KEY=VALUE"):
        parse_text("kill:rank")


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"seed": 3, "margin": "1s", "recover": 9, "faults": [{"kind": "kill", "rank": 0, "step": 1}]}
    expected = Plan((Fault(Kind.KILL, rank=0, at_step=1),), 3, 1.0, 9.0)
    as_json, as_yaml, neither = tmp_path / "plan.json", tmp_path / "plan.yaml", tmp_path / "bad.yaml"
    as_json.write_text(json.dumps(shape))
    as_yaml.write_text(
        "# a comment\nseed: 3\nmargin: 1s\nrecover: 9\nfaults:\n  - kind: kill\n    rank: 0\n    step: 1\n"
    )
    neither.write_text("faults: [")
    assert load(str(as_json)) == load(str(as_yaml)) == expected
    for path, complaint in (
        (neither, "not YAML"),
        (tmp_path / "none", "cannot read the plan"),
        (tmp_path, "cannot read"),
    ):
        with pytest.raises(PlanError, match=complaint):
            load(str(path))
    (tmp_path / "bad.json").write_text("faults: []")
    with pytest.raises(PlanError, match="not JSON"):
        load(str(tmp_path / "bad.json"))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="UTF-8"):
        load(str(tmp_path / "binary.json"))
    (tmp_path / "large.json").write_bytes(b" " * (1 << 20) + b"[]")
    with pytest.raises(PlanError, match="at most 1 MiB"):
        load(str(tmp_path / "large.json"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert load(str(as_json)) == expected
    with pytest.raises(PlanError, match="PyYAML"):
        load(str(as_yaml))


def test_the_example_can_be_read() -> None:
    plan = settle(load(str(ROOT / "examples" / "drill" / "plan.yaml")), Place(2), 7)
    assert [fault.kind for fault in plan.faults] == [Kind.KILL, Kind.EXCEPTION, Kind.STOP]


def test_chance_is_the_same_for_the_same_seed() -> None:
    plan = join([make_random(20, [Kind.STOP, Kind.KILL, Kind.SPIN], range_from("--steps", "5..9")), Plan(seed=3)])
    once, again, other = (settle(plan, Place(4), seed) for seed in (1, 1, 2))
    assert once == again != other
    assert {fault.kind for fault in once.faults} <= {Kind.STOP, Kind.KILL, Kind.SPIN}
    assert len({(fault.kind, fault.rank, fault.after_steps) for fault in once.faults}) > 5
    assert all(fault.rank in range(4) and fault.after_steps in range(5, 10) for fault in once.faults)
    assert len({fault.id for fault in once.faults}) == 20 and once.seed == 1


def test_kinds_given_in_another_order_are_drawn_alike() -> None:
    drawn = [
        settle(make_random(9, kinds, Range(1, 2)), Place(2), 5)
        for kinds in ([Kind.KILL, Kind.STOP], [Kind.STOP, Kind.KILL])
    ]
    assert drawn[0] == drawn[1]


def test_repetitions_become_single_faults() -> None:
    plan = Plan(
        (Fault(Kind.KILL, rank=0, after_s=1.0, every_s=5.0, times=3), Fault(Kind.STOP, rank=1, after_steps=4, times=2))
    )
    settled = settle(plan, Place(2), 0).faults
    assert [(fault.id, fault.after_s, fault.after_steps, fault.times) for fault in settled] == [
        ("1-kill", 1.0, None, 1),
        ("2-kill", 5.0, None, 1),
        ("3-kill", 5.0, None, 1),
        ("4-stop", None, 4, 1),
        ("5-stop", None, 4, 1),
    ]


@pytest.mark.parametrize(
    ("fault", "place", "complaint"),
    [
        (Fault(Kind.KILL, rank=2), Place(2), "there is no rank 2, only 0 to 1"),
        (Fault(Kind.KILL, rank=1), Place(1), "there is no rank 1, only 0"),
        (Fault(Kind.AGENT_KILL, node=2), Place(4, 2), "there is no node 2, only 0 to 1"),
        (Fault(Kind.NET_CUT), Place(2), "net-cut needs a drill of several nodes"),
        (Fault(Kind.ETCD_STOP), Place(2), "etcd-stop needs a drill of several nodes"),
    ],
)
def test_faults_that_the_place_is_too_small_for(fault: Fault, place: Place, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        settle(Plan((fault,)), place, 0)


def test_only_faults_of_ranks_are_drawn() -> None:
    for kinds in ([Kind.KILL, Kind.ETCD_STOP], []):
        with pytest.raises(PlanError, match="does not happen to a rank"):
            make_random(3, kinds, Range(1, 2))
    for count in (0, 1001):
        with pytest.raises(PlanError, match="from 1 to 1000"):
            make_random(count, [Kind.KILL], Range(1, 2))


def test_a_settled_fault_survives_its_way_to_the_agent() -> None:
    fault = Fault(Kind.STOP, id="x", rank=3, after_steps=5, times=2, detect_s=1.5, recover_s=2.0)
    assert fault_from(json.loads(json.dumps(fault_to_json(fault)))) == fault
    assert fault.target == "rank 3" and fault.moment == "after 5 steps"
