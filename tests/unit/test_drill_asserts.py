"""From events to findings: detected, recovered, blamed, in time or not; and what is still open."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.launcher.drill import told
from ftlaunch.launcher.drill.asserts import (
    Budgets,
    Finding,
    Injection,
    Life,
    injections,
    is_warm,
    judge,
    recovery_time,
)
from ftlaunch.launcher.drill.plan import Fault, Kind, Plan
from ftlaunch.launcher.drill.result import Report
from ftlaunch.launcher.drill.steps import StepAccount

AT = 100.0
BUDGETS = Budgets(margin_s=0.2)


def event(name: str, at: float, generation: int = 0, **fields: Any) -> dict[str, Any]:
    return {"event": name, "monotonic": AT + at, "generation": generation, "rank": None, "reason": None, **fields}


def failure(at: float, generation: int = 0, rank: int | None = 1, reason: str = "died") -> dict[str, Any]:
    return event("failure_detected", at, generation, rank=rank, reason=reason)


def resumed(at: float, generation: int = 1) -> dict[str, Any]:
    return event("training_resumed", at, generation)


def life(*events: dict[str, Any], node: int = 0, began_at: float = 0.0, alive: bool = True) -> Life:
    return Life(node, began_at, events, alive)


def kill(kind: Kind = Kind.KILL, **fields: Any) -> Fault:
    return Fault(kind, id="f", rank=1, **fields)


def struck(**fields: Any) -> Injection:
    return Injection("f", AT, 0, 1, 70, **fields)


def look(fault: Fault, *lives: Life, now: float = 1.0, budgets: Budgets = BUDGETS, **fields: Any) -> Finding:
    return judge(fault, struck(**fields), lives, budgets, AT + now)


GOOD = life(resumed(-9, 0), failure(0.004), resumed(0.3))


def test_a_fault_that_was_taken_well() -> None:
    found = look(kill(), GOOD)
    assert found.ok and found.settled and found.generation == 0 and found.blamed == 1
    assert found.detected_s == pytest.approx(0.004) and found.detect_budget_s == pytest.approx(0.21)
    assert found.recovered_s == pytest.approx(0.3) and found.recover_budget_s == 5.0
    assert recovery_time(found) == pytest.approx(0.296)
    assert found.phases_s == {"failure_detected": pytest.approx(0.004), "training_resumed": pytest.approx(0.3)}


@pytest.mark.parametrize(
    ("fault", "events", "problem"),
    [
        (kill(), [failure(0.5), resumed(0.8)], "detected only after 0.500 s, allowed are 0.210 s"),
        (kill(detect_s=0.1), [failure(0.15), resumed(0.8)], "detected only after 0.150 s, allowed are 0.100 s"),
        (kill(Kind.STOP), [failure(3.5), resumed(4.0)], "detected only after 3.500 s, allowed are 3.200 s"),
        (kill(), [failure(0.1), resumed(9.0)], "recovered only after 8.90 s, allowed are 5.00 s"),
        (kill(recover_s=0.1), [failure(0.1), resumed(0.3)], "recovered only after 0.20 s"),
        (kill(), [failure(0.1)], "not recovered"),
        (kill(), [failure(0.1, rank=0), resumed(0.3)], "rank 0 was blamed for it instead of rank 1"),
        (kill(), [failure(0.1, rank=None), resumed(0.3)], "no rank was blamed for it instead of rank 1"),
        (kill(), [], "not detected"),
        # Before it was done, or of a generation before: no witness.
        (kill(), [failure(-0.1), resumed(0.3)], "not detected"),
        (kill(), [failure(0.1, generation=-1), resumed(0.3)], "not detected"),
    ],
)
def test_each_thing_that_can_be_wrong(fault: Fault, events: list[dict[str, Any]], problem: str) -> None:
    found = look(fault, life(*events))
    assert len(found.problems) == 1 and problem in found.problems[0]


def test_a_corrected_blame_counts() -> None:
    corrected = event("cause_corrected", 0.2, rank=1)
    assert look(kill(), life(failure(0.1, rank=0), corrected, resumed(0.3))).blamed == 1


def test_a_spin_may_last_as_long_as_its_limit_says() -> None:
    slow = life(failure(2.9, rank=0), resumed(3.1))
    assert look(kill(Kind.SPIN), slow, limit_s=2.0).ok
    assert look(kill(Kind.SPIN), slow, limit_s=1.0).problems == ("detected only after 2.900 s, allowed are 1.700 s",)
    assert look(kill(Kind.SPIN), slow).detect_budget_s is None


def test_a_slow_recovery_is_explained_by_cold_starts() -> None:
    cold = life(failure(0.1), event("workers_started", 0.3, 1, warm=1, pids=[7, 8]), resumed(9.0))
    assert "(1 of 2 ranks came from a standby)" in look(kill(), cold).problems[0]


def test_not_settled_until_training_goes_on_or_the_job_is_over() -> None:
    assert not look(kill(), life()).settled
    assert not look(kill(), life(failure(0.1))).settled
    over = look(kill(), life(failure(0.1), alive=False))
    assert over.settled and over.problems == ("not recovered",)


def test_not_carried_out() -> None:
    fault = kill(at_step=900)
    waiting = judge(fault, None, [life()], BUDGETS, AT)
    assert not waiting.settled and not waiting.ok
    over = judge(fault, None, [life(alive=False)], BUDGETS, AT)
    assert over.settled and over.problems == ("not carried out: the job ended before (at step 900)",)
    failed = judge(fault, None, [life(event("fault_failed", 0, fault="f", reason="no right"))], BUDGETS, AT)
    assert failed.settled and failed.problems == ("no right",)


def test_the_only_agent_is_killed_and_started_again() -> None:
    fault = Fault(Kind.AGENT_KILL, id="f")
    first, second = life(resumed(-5, 0), alive=False), life(resumed(2.0, 0), began_at=AT + 0.1)
    found = look(fault, first, second)
    assert found.ok and found.detected_s is None and recovery_time(found) == pytest.approx(2.0)
    assert look(fault, first, life(began_at=AT + 0.1)).problems == ("not recovered",)
    assert look(fault, first, life(resumed(40.0, 0), began_at=AT + 0.1)).problems == (
        "recovered only after 40.00 s, allowed are 30.00 s",
    )


def test_another_node_detects_what_happened_to_one() -> None:
    fault = Fault(Kind.NODE_LOSS, id="f", node=1)
    gone, other = life(node=1, alive=False), life(failure(4.0, rank=None, reason="node 1 is gone"), resumed(6.0))
    found = look(fault, gone, other)
    assert found.ok and found.detected_s == pytest.approx(4.0) and found.detect_budget_s is None
    assert look(fault, gone, life()).problems == ("not detected",)


def test_what_must_not_disturb() -> None:
    fault = Fault(Kind.ETCD_STOP, id="f", hold_s=3.0)
    assert not look(fault, life(), now=1.0).settled
    quiet = look(fault, life(), now=6.0)
    assert quiet.ok and quiet.settled and quiet.detected_s is None
    disturbed = look(fault, life(failure(2.0, reason="lease lost")), now=2.5)
    assert disturbed.settled and disturbed.problems == ("the job was disturbed by it after 2.00 s: lease lost",)
    assert look(fault, life(failure(5.5)), now=6.0).ok, "later than anything that it could have caused"


def test_a_cut_is_either_lived_through_or_recovered_from() -> None:
    fault = Fault(Kind.NET_CUT, id="f", node=1, hold_s=3.0)
    assert look(fault, life(), life(node=1), now=6.0).ok
    later = look(fault, life(failure(9.0), resumed(9.5)), now=12.0)
    assert later.ok and later.detected_s is None, "later than anything that it could have caused"
    fenced = look(fault, life(failure(2.0), resumed(7.0)), life(node=1), now=8.0)
    assert fenced.ok and fenced.recover_budget_s == 33.0


def test_injections_come_from_events() -> None:
    told = {**event("fault_injected", 0.1, 2, fault="f", rank=3, step=70, limit_s=600), "at": AT}
    garbage = {**event("fault_injected", 0.1, fault=7), "at": "now"}
    assert injections([life(garbage), life(told)]) == {"f": Injection("f", AT, 2, 3, 70, 600.0)}


@pytest.mark.parametrize(
    ("names", "warm"),
    [
        ([], False),
        (["started", "resumed", "ready0"], False),
        (["started", "resumed", "ready0", "ready1"], True),
        (["started", "ready0", "ready1"], False),
        (["started", "resumed", "ready0", "ready1", "started", "resumed"], False),
        (["started", "off"], True),
    ],
)
def test_when_standbys_are_ready(names: list[str], warm: bool) -> None:
    spelled = {"started": "workers_started", "resumed": "training_resumed", "off": "standby_off"}
    events = [
        event(spelled.get(name, "standby_ready"), at, local_rank=int(name[-1]) if name[-1].isdigit() else None)
        for at, name in enumerate(names)
    ]
    assert is_warm(events, 2) is warm


def test_the_table_and_the_verdict() -> None:
    good, bad = look(kill(), GOOD), look(kill(Kind.STOP), life(failure(0.1)))
    steps = StepAccount(True, 60, 60, 3)
    report = Report(Plan((good.fault,), seed=4), (good,), steps, (0,), runs=("/r",))
    assert report.ok and told.rows(report) == [
        ("f", "rank 1", "70", "4 ms", "0.21 s", "0.30 s", "5.00 s", "ok"),
    ]
    assert told.notes(report) == [
        "passed: 1 of 1 fault taken as they should be, 60 steps, none lost, 3 repeated since a checkpoint, "
        "nothing left over (seed 4)"
    ]
    report = Report(
        Plan((good.fault, bad.fault)),
        (good, bad),
        StepAccount(True, problems=("rank 0: lost",)),
        (1,),
        ("pid 7 (x)",),
        ("p",),
    )
    assert not report.ok and [row[-1] for row in told.rows(report)] == ["ok", "FAILED"]
    assert told.notes(report)[:-1] == ["f: not recovered", "p", "left over: pid 7 (x)", "rank 0: lost"]
    assert told.notes(report)[-1].startswith("FAILED: 1 of 2 faults")
    shape = told.as_json(report)
    assert shape["ok"] is False and shape["faults"][1]["problems"] == ["not recovered"]
    assert shape["faults"][0]["struck_at_step"] == 70 and shape["left_over"] == ["pid 7 (x)"]


@pytest.mark.parametrize("report", [Report(Plan(), left_over=("x",)), Report(Plan(), problems=("x",))])
def test_anything_wrong_fails_the_drill(report: Report) -> None:
    assert Report(Plan()).ok and not report.ok


def test_lines_while_it_goes_on() -> None:
    assert (
        told.describe(look(kill(), GOOD)) == "kill: rank 1 at step 70: detected after 4 ms, training again after 0.30 s"
    )
    assert told.describe(look(kill(), life(failure(0.1)))) == "kill: rank 1 at step 70: not recovered"
    passing = look(Fault(Kind.ETCD_STOP, id="f"), life(), now=9.0)
    assert told.describe(passing).endswith("the job was not disturbed")
