"""What a running agent answers to ftctl: real decisions, everything that acts is played."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.heartbeat.watching.watch import Watch
from ftlaunch.launcher import commands
from ftlaunch.launcher.agent import Agent
from ftlaunch.launcher.commands import Desk
from ftlaunch.launcher.config import CommandConfig, CommandKind, Config, HeartbeatConfig, RestartBudget, RestartConfig
from ftlaunch.launcher.control.control_socket import ControlServer, RequestError
from ftlaunch.launcher.control.office import Office
from ftlaunch.launcher.decision.actions import Manner, StopWorkers
from ftlaunch.launcher.decision.policy import judge
from ftlaunch.launcher.decision.state import Ending, Phase, Recovery, State
from ftlaunch.launcher.hearing.peers import Peers
from ftlaunch.launcher.journal.incident import Diagnosed, FailureCause, Incident
from ftlaunch.launcher.views.present import describe_cause, describe_limit
from ftlaunch.rendezvous.interface import Answers, ExclusionAnswer, ExclusionWish, Member, Outcome, Parked, Question
from support import control_stand_in as stand_in


class Played:
    """Crew, ear, narrator and rendezvous in one; remembers what it was told."""

    def __init__(self) -> None:
        self.workers: list[Any] = []
        self.pool = None
        self.watch = Watch(HeartbeatConfig())
        self.incident = None
        self.faults: Mapping[int, Any] = {}
        self.stops: list[StopWorkers] = []
        self.records: list[str] = []

    def stop(self, action: StopWorkers) -> None:
        self.stops.append(action)

    def progress(self) -> Progress:
        return Progress(beaten=True, step=40)

    def record(self, action: Any, state: State) -> None:
        self.records.append(f"{action.name}: {action.reason}")

    def conclude(self, action: Any, state: State) -> None:
        self.records.append(f"decided: {action.reason}")

    def join(self, joining: Any) -> None:
        self.records.append(f"join {joining.generation}")

    def respond_with(self, respondent: Any) -> None:
        """Nobody asks."""

    def tell(self, name: str, *, reason: str, say: bool, node: str) -> None:
        self.records.append(f"{name}: {reason}")

    def announce_failure(self, generation: int, reason: str) -> None:
        self.records.append("announced")


AS_LONG_AS_PROGRESS = RestartConfig()


def make_desk(state: State, restarts: RestartConfig = AS_LONG_AS_PROGRESS) -> tuple[Desk, Agent, Played]:
    played: Any = Played()
    agent = Agent(state, lambda history, now: judge(history, now, restarts), played, played)
    agent.employ(played)
    config = Config(CommandConfig(CommandKind.SCRIPT, "train.py"), restarts=restarts)
    dumps = SimpleNamespace(clear=lambda rank: None, read=lambda rank: b"")
    return (
        Desk(Office(agent, played, played, played, config, cast(Any, dumps), "/runs/one", Peers(played))),
        agent,
        played,
    )


def request(desk: Desk, name: str, **arguments: Any) -> Any:
    return asyncio.run(getattr(desk, name)(arguments))


def test_restart_stops_the_ranks_and_joins_the_next_generation() -> None:
    desk, agent, played = make_desk(stand_in.state(2))
    answer = request(desk, "restart", reason="new data")
    assert answer["generation"] == 2
    assert [stop.manner for stop in played.stops] == [Manner.FAILED]
    assert "failure_detected: restart asked for with ftctl: new data" in played.records and "join 3" in played.records
    assert agent.state.phase is Phase.STOPPING
    assert agent.state.history[-1].kind == "request" and agent.state.history[-1].step == 40


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.STARTING, Phase.RUNNING)])
def test_restart_is_refused_when_no_generation_is_alive(phase: Phase) -> None:
    desk, agent, _ = make_desk(stand_in.state(2, phase))
    before = agent.state
    with pytest.raises(RequestError, match=f"no generation to restart: the job is {phase.value}"):
        request(desk, "restart")
    assert agent.state is before


def test_restart_is_refused_by_a_spare() -> None:
    waiting = replace(stand_in.state(2, Phase.JOINING), recovery=Recovery(stopped=True, reclaimed=True))
    desk, agent, _ = make_desk(waiting)
    agent.post(Parked(2, "generation 2 has its 2 nodes; this one waits as a spare"))
    with pytest.raises(RequestError, match="this node is a spare: ask a node at work"):
        request(desk, "restart")


def test_restart_is_refused_when_it_would_end_the_job() -> None:
    budget = RestartConfig(budget=RestartBudget(0, 60.0), max_restarts=3)
    desk, agent, played = make_desk(stand_in.state(2), budget)
    played.progress = Progress  # type: ignore[method-assign]
    before = agent.state
    with pytest.raises(RequestError, match=r"would end the job .*--restart-budget.*; ftctl stop ends it in order"):
        request(desk, "restart")
    assert agent.state is before and not played.stops and not played.records


def test_stop_ends_the_job_politely() -> None:
    desk, agent, played = make_desk(stand_in.state(2))
    assert request(desk, "stop", reason="done for today")["exit_code"] == 143
    assert [stop.manner for stop in played.stops] == [Manner.POLITE]
    assert agent.state.ending is not None and agent.state.ending.reason == "stopped with ftctl: done for today"


def test_stop_is_refused_when_the_job_ends_already() -> None:
    ending = Ending(Outcome.LEFT, 143, "received SIGTERM")
    for state in (stand_in.state(2, Phase.STOPPING, ending=ending), stand_in.state(2, Phase.DONE)):
        desk, _, played = make_desk(state)
        with pytest.raises(RequestError, match="ending already"):
            request(desk, "stop")
        assert not played.stops


def test_stop_ends_the_generation_that_began_while_the_others_were_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(stand_in.world(2), members=(Member("a", "a", 0, 2), Member("b", "b", 0, 2)))
    desk, agent, played = make_desk(stand_in.state(2, world=two))

    async def ask(peers: Peers, question: Question, limit_s: float) -> Answers:
        assert question.generation == 2
        agent.state = stand_in.state(2, generation=3, world=replace(two, generation=3))
        return Answers({}, ("b",))

    monkeypatch.setattr(Peers, "ask", ask)
    config = desk._office.config
    desk._office = replace(desk._office, config=replace(config, rendezvous=replace(config.rendezvous, max_nodes=2)))
    answer = request(desk, "stop")
    assert (answer["generation"], answer["silent"]) == (3, 1)
    assert [(stop.generation, stop.manner) for stop in played.stops] == [(3, Manner.POLITE)]


def test_stop_asked_for_on_another_node_ends_whatever_generation_runs_by_now() -> None:
    desk, agent, played = make_desk(stand_in.state(2))
    asyncio.run(desk._office.peers.answer(Question(1, "stop", "node-b: enough")))
    assert [stop.manner for stop in played.stops] == [Manner.POLITE]
    assert agent.state.ending is not None and agent.state.ending.reason == "stopped with ftctl on node-b: enough"


def test_exclude_goes_to_the_rendezvous_and_into_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, _, played = make_desk(stand_in.state(2))
    wishes: list[ExclusionWish] = []

    async def exclude(agent: Agent, wish: ExclusionWish) -> ExclusionAnswer:
        wishes.append(wish)
        return ExclusionAnswer("host-b", "the job goes on with 3 nodes", changed=len(wishes) < 2)

    monkeypatch.setattr(Agent, "exclude", exclude)
    answer = request(desk, "exclude", node="b", reason="a\nb\x1b[2J", undo="yes", force=1)
    assert answer == {"name": "host-b", "effect": "the job goes on with 3 nodes", "changed": True}
    assert wishes == [ExclusionWish("b", "a b [2J")]
    told = "node_excluded: node host-b is left out, asked for with ftctl (a b [2J): the job goes on with 3 nodes"
    assert played.records == [told]
    request(desk, "exclude", node="b", undo=True)
    assert wishes[-1].undo and played.records == [told], "nothing has changed"


@pytest.mark.parametrize("node", [None, "", 7, ["b"]])
def test_exclude_wants_to_know_which_node(node: object) -> None:
    desk, _, _ = make_desk(stand_in.state(2))
    with pytest.raises(RequestError, match="which node"):
        request(desk, "exclude", node=node)


def test_exclude_before_there_is_a_rendezvous_is_refused() -> None:
    desk, agent, _ = make_desk(stand_in.state(2))
    assert agent.exclusions == ()
    with pytest.raises(RequestError, match="only just starting"):
        request(desk, "exclude", node="b")


@pytest.mark.parametrize("reason", [7, None, ["x"], {"a": 1}, "", "   "])
def test_a_reason_that_is_none_is_left_out(reason: object) -> None:
    desk, _, _ = make_desk(stand_in.state(1))
    assert request(desk, "stop", reason=reason)["reason"] == "stopped with ftctl"


def test_a_reason_becomes_one_short_line() -> None:
    desk, _, _ = make_desk(stand_in.state(1))
    told = request(desk, "stop", reason="a\nb\x1b[2J" + "x" * 5000)["reason"]
    assert told.startswith("stopped with ftctl: a b [2Jxxx") and len(told) < 600 and told.isprintable()


def test_status_before_anything_was_started() -> None:
    desk, _, _ = make_desk(State(slots=2))
    status = request(desk, "status")
    assert status["phase"] == "joining" and status["ranks"] == [] and status["run"] == "/runs/one"
    assert [limit["name"] for limit in status["limits"]][:2] == ["step", "init"]


def test_dump_without_ranks_is_empty() -> None:
    desk, _, _ = make_desk(stand_in.state(0))
    assert request(desk, "dump") == {"generation": 2, "ranks": []}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (RestartConfig(), "as long as there is progress, 3 without"),
        (RestartConfig(max_restarts=5), "of at most 5"),
        (RestartConfig(budget=RestartBudget(4, 3600)), "of at most 4 within 3600 s"),
    ],
)
def test_restart_limit_in_words(config: RestartConfig, text: str) -> None:
    assert describe_limit(config) == text


def test_the_last_cause_is_what_was_found_out() -> None:
    assert describe_cause(None) is None
    seen = Incident(1, FailureCause("signal", "was killed by SIGKILL", rank=1, pid=7), "restart", "restart 2")
    cause = describe_cause(seen)
    assert cause is not None and (cause.rank, cause.reason) == (1, "was killed by SIGKILL")
    found = Diagnosed("out_of_memory", "rank 2 (pid 8) was OOM-killed by the kernel: limit (soft)", "certain", "", 2)
    cause = describe_cause(replace(seen, diagnosis=found))
    assert cause is not None and (cause.rank, cause.reason) == (2, "was OOM-killed by the kernel: limit (soft)")


def test_without_a_usable_directory_there_is_no_socket(tmp_path: Any) -> None:
    desk_office = make_desk(stand_in.state(1))[0]._office
    for directory in ("", str(tmp_path / "missing"), "/" + "x" * 200):
        control = asyncio.run(commands.serve(desk_office, directory))
        assert control.path == ""
        asyncio.run(control.close())


def test_an_answer_under_way_when_the_agent_ends_is_dropped_without_a_word(tmp_path: Path) -> None:
    unhandled: list[dict[str, Any]] = []
    path = str(tmp_path / "s")

    async def agent() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
        asked = asyncio.Event()

        async def for_ever(request: Mapping[str, Any]) -> None:
            asked.set()
            await asyncio.Event().wait()

        server = ControlServer({"status": for_ever})
        await server.open(path)
        _, client = await asyncio.open_unix_connection(path)
        client.write(b'{"command": "status"}\n')
        await asked.wait()
        await server.close()
        client.close()

    asyncio.run(agent())
    assert not unhandled
