"""What ``ftctl status`` is told: one node described, several put together, what the watch knows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ftlaunch.heartbeat.watching.listener import Heard as HeardMessage
from ftlaunch.heartbeat.watching.watch import Watch
from ftlaunch.heartbeat.wire import Kind, Message
from ftlaunch.launcher.config import HeartbeatConfig
from ftlaunch.launcher.decision.state import Ending, Phase, State, WorkerState, WorkerStatus
from ftlaunch.launcher.views import overview
from ftlaunch.launcher.views.hearsay import heard_from
from ftlaunch.launcher.views.overview import Heard, ProcessFacts, RankFacts, describe_node, merge, progress, rank_state
from ftlaunch.rendezvous.interface import Outcome
from support import control_stand_in as stand_in


def describe(ranks: int = 4, now: float = 100.0, **changes: Any) -> dict[str, Any]:
    return describe_node(stand_in.state(ranks), stand_in.node_facts(ranks, **changes), stand_in.heard(ranks), now)


def test_a_node_is_plain_json() -> None:
    node = describe()
    assert json.loads(json.dumps(node, allow_nan=False)) == node
    assert (node["generation"], node["phase"], node["phase_s"], node["up_s"]) == (2, "running", 40.0, 100.0)
    assert node["standby"] == {"mode": "auto", "ready": 4, "wanted": 4}
    assert node["last_cause"]["reason"] == "was killed by SIGKILL"


def test_a_rank_has_what_the_table_shows() -> None:
    rank = describe()["ranks"][3]
    assert rank["rank"] == 3 and rank["pid"] == 5003 and rank["state"] == "running"
    assert (rank["step"], rank["total"], rank["step_rate"]) == (1200, 10000, 12.5)
    assert (rank["limit_s"], rank["limit_name"], rank["limit_origin"]) == (30.0, "step", "learnt")
    assert rank["memory_bytes"] == 903 << 20
    assert (rank["failures"], rank["last_cause"]) == (2, "was killed by SIGKILL")


def test_before_the_first_world_there_is_nothing_but_the_node() -> None:
    node = describe_node(State(slots=2), stand_in.node_facts(2), Heard(), 5.0)
    assert node["generation"] == -1 and node["ranks"] == [] and node["job"] == "train"
    assert node["world_size"] is None and node["restarts"] == 0 and node["progress"] is None
    assert json.dumps(merge([node]))


def test_why_a_job_ends_is_told() -> None:
    state = stand_in.state(2, Phase.STOPPING, ending=Ending(Outcome.LEFT, 143, "received SIGTERM"))
    node = describe_node(state, stand_in.node_facts(2), Heard(), 70.0)
    assert node["ending"] == "received SIGTERM"
    assert {rank["state"] for rank in node["ranks"]} == {"stopping"}


BEATS = RankFacts(0, beaten=True)


@pytest.mark.parametrize(
    ("worker", "phase", "os_state", "facts", "expected"),
    [
        (WorkerState(0), Phase.STARTING, "", None, "not started"),
        (WorkerState(0, 7), Phase.RUNNING, "S", RankFacts(0), "starting"),
        (WorkerState(0, 7), Phase.RUNNING, "R", BEATS, "running"),
        (WorkerState(0, 7), Phase.RUNNING, "S", None, "running"),
        (WorkerState(0, 7), Phase.RUNNING, "T", BEATS, "stopped"),
        (WorkerState(0, 7), Phase.STOPPING, "T", BEATS, "stopped"),
        (WorkerState(0, 7), Phase.RUNNING, "t", BEATS, "traced"),
        (WorkerState(0, 7), Phase.RUNNING, "D", BEATS, "blocked"),
        (WorkerState(0, 7), Phase.STOPPING, "S", BEATS, "stopping"),
        (WorkerState(0, 7, WorkerStatus.FAILING), Phase.STOPPING, "S", BEATS, "failing"),
        (WorkerState(0, 7, WorkerStatus.EXITED, 0), Phase.RUNNING, "", BEATS, "finished"),
        (WorkerState(0, 7, WorkerStatus.EXITED, 3), Phase.STOPPING, "", BEATS, "exited with 3"),
        (WorkerState(0, 7, WorkerStatus.EXITED, -9), Phase.STOPPING, "", BEATS, "killed by SIGKILL"),
    ],
)
def test_state_of_a_rank(
    worker: WorkerState, phase: Phase, os_state: str, facts: RankFacts | None, expected: str
) -> None:
    assert rank_state(worker, phase, os_state, facts) == expected


def test_progress_is_that_of_the_slowest_rank_at_the_usual_rate() -> None:
    ranks = [
        {"step": 100, "total": 1000, "step_rate": 10.0},
        {"step": 90, "total": 1000, "step_rate": 10.0},
        {"step": 100, "total": None, "step_rate": 0.1},
        {"step": None, "total": None, "step_rate": None},
    ]
    assert progress(ranks) == {"step": 90, "total": 1000, "step_rate": 10.0, "eta_s": 91.0}


def test_progress_without_a_total_or_beyond_it_has_no_time_left() -> None:
    assert progress([{"step": 5, "total": None, "step_rate": 2.0}]) == {
        "step": 5,
        "total": None,
        "step_rate": 2.0,
        "eta_s": None,
    }
    beyond = progress([{"step": 12, "total": 10, "step_rate": 2.0}])
    assert beyond is not None and beyond["eta_s"] == 0.0
    assert progress([]) is None


def test_a_rank_that_has_fallen_silent_loses_its_rate_but_not_within_a_section() -> None:
    silent = RankFacts(0, step=5, step_rate=10.0, beaten=True, silence_s=20.0)
    saving = replace(silent, local_rank=1, sections=("checkpoint",))
    heard = Heard({0: silent, 1: saving})
    ranks = describe_node(stand_in.state(2), stand_in.node_facts(2), heard, 70.0)["ranks"]
    assert ranks[0]["step_rate"] == pytest.approx(0.05) and ranks[1]["step_rate"] == 10.0


def other_node(generation: int = 2, first_rank: int = 4, **changes: Any) -> dict[str, Any]:
    node = describe(**changes)
    ranks = [{**rank, "rank": rank["rank"] + first_rank, "host": "node-b"} for rank in node["ranks"]]
    return {**node, "host": "node-b", "generation": generation, "ranks": ranks}


def test_two_nodes_make_one_job() -> None:
    status = merge([other_node(), describe()])
    assert [rank["rank"] for rank in status["ranks"]] == list(range(8))
    assert {rank["host"] for rank in status["ranks"]} == {"node-a", "node-b"}
    assert status["standby"] == {"mode": "auto", "ready": 8, "wanted": 8}
    assert [node["host"] for node in status["nodes"]] == ["node-b", "node-a"]
    assert "ranks" not in status["nodes"][0]


def test_a_node_that_is_behind_is_shown_without_its_ranks() -> None:
    behind = {**other_node(generation=1), "phase": "reclaiming"}
    status = merge([behind, describe()])
    assert status["generation"] == 2 and status["phase"] == "running"
    assert [rank["rank"] for rank in status["ranks"]] == [0, 1, 2, 3]
    assert status["nodes"][0]["phase"] == "reclaiming"


def test_the_cause_is_told_by_the_node_that_knows_the_rank() -> None:
    second_hand = overview.Cause(1, None, "peer", "node node-a failed: rank 3", "restart", "")
    status = merge([other_node(last_cause=second_hand), describe()])
    assert status["last_cause"]["rank"] == 3


def test_the_longest_limit_of_all_nodes_is_shown() -> None:
    longer = other_node()
    longer["limits"] = [{**longer["limits"][0], "seconds": 45.0}, {**longer["limits"][1], "seconds": None}]
    limits = {limit["name"]: limit["seconds"] for limit in merge([describe(), longer])["limits"]}
    assert limits == {"step": 45.0, "init": None}


def test_nodes_of_another_version_are_left_out() -> None:
    assert merge([{"version": 99}])["nodes"] == []
    assert len(merge([describe(), {"version": 99}])["nodes"]) == 1


def test_kernel_facts_are_by_pid() -> None:
    node = describe(processes={5001: ProcessFacts(5 << 20, "T")})
    assert [rank["memory_bytes"] for rank in node["ranks"]] == [None, 5 << 20, None, None]
    assert [rank["state"] for rank in node["ranks"]] == ["running", "stopped", "running", "running"]


# -- the watch ----


class Speaker:
    """Sends messages of rank 0 to a watch."""

    def __init__(self, **settings: Any) -> None:
        self.watch = Watch(HeartbeatConfig(**settings))
        self.watch.begin(0, [50, 51], 0.0)
        self.sequence = 0
        self.serial = 0

    def say(self, kind: Kind, at: float, step: int | None = None, **payload: Any) -> None:
        self.sequence += 1
        if "sections" in payload:
            self.serial += 1
        message = Message(kind, 0, 0, self.sequence, self.serial, step, int(at * 1e9), payload)
        self.watch.hear(HeardMessage(message, 50, at))

    def train(self, steps: int, gap_s: float) -> float:
        for step in range(steps):
            self.say(Kind.BEAT, 1.0 + step * gap_s, step, info={"total": 500})
        return 1.0 + (steps - 1) * gap_s


def test_learnt_limits_are_told_with_what_they_were_learnt_from() -> None:
    speaker = Speaker(floor_s=3.0)
    last = speaker.train(60, 0.1)
    heard = heard_from(speaker.watch, last + 0.05)
    rank, silent = heard.ranks[0], heard.ranks[1]
    assert (rank.step, rank.total, rank.phase, rank.beaten) == (59, 500, "stepping", True)
    assert rank.step_rate == pytest.approx(10.0, rel=0.01)
    assert rank.silence_s == pytest.approx(0.05)
    assert (rank.limit_s, rank.limit_name, rank.limit_origin) == (3.0, "step", "learnt")
    assert (silent.beaten, silent.step, silent.limit_s) == (False, None, None)
    step = next(limit for limit in heard.limits if limit.name == "step")
    assert step.origin == "learnt" and step.longest_s == pytest.approx(0.1) and step.seen >= 20


def test_rate_goes_by_the_numbers_of_steps_as_not_all_are_told() -> None:
    speaker = Speaker()
    for beat in range(20):
        # 50 steps a second, told ten times a second; then a new epoch.
        speaker.say(Kind.BEAT, 1.0 + beat * 0.1, 5 * beat if beat < 19 else 0)
    assert heard_from(speaker.watch, 3.0).ranks[0].step_rate == pytest.approx((18 * 5 + 1) / 1.9)


@pytest.mark.parametrize(("gap_s", "rate"), [(0.5, 2.0), (0.1, None)])
def test_beats_without_a_number_that_come_as_often_as_told_at_most_have_no_rate(gap_s: float, rate: float) -> None:
    speaker = Speaker()
    for beat in range(20):
        speaker.say(Kind.BEAT, 1.0 + beat * gap_s)
    assert heard_from(speaker.watch, 12.0).ranks[0].step_rate == rate


def test_a_section_shows_with_its_own_limit() -> None:
    speaker = Speaker(section_timeouts_s={"eval": 77.0})
    last = speaker.train(5, 0.1)
    speaker.say(Kind.SECTION, last + 0.1, sections=["eval"])
    rank = heard_from(speaker.watch, last + 10.1).ranks[0]
    assert rank.sections == ("eval",)
    assert (rank.limit_s, rank.limit_origin) == (77.0, "configured")
    assert rank.silence_s == pytest.approx(10.0)


def test_no_limit_is_none_and_fits_into_json() -> None:
    speaker = Speaker(hang_timeout_s=0.0)
    last = speaker.train(3, 0.1)
    heard = heard_from(speaker.watch, last)
    assert heard.ranks[0].limit_s is None and heard.ranks[0].silence_s is not None
    node = describe_node(stand_in.state(2), stand_in.node_facts(2), heard, 70.0)
    json.dumps(merge([node]), allow_nan=False)


@pytest.mark.parametrize("total", [-1, 0, "many", None, float("nan"), 1 << 70, True])
def test_a_senseless_total_does_no_harm(total: object) -> None:
    speaker = Speaker()
    speaker.say(Kind.BEAT, 1.0, 1, info={"total": total})
    assert heard_from(speaker.watch, 1.0).ranks[0].total in (None, 1)
