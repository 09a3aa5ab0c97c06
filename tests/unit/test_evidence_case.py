"""From what the agent knows of a failed generation to verdicts, and when the user hears of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ftlaunch.heartbeat.watching.lastwords import LastWords
from ftlaunch.launcher.decision import actions as do
from ftlaunch.launcher.decision.events import Failure, FailureKind
from ftlaunch.launcher.decision.state import State, WorkerState, WorkerStatus
from ftlaunch.launcher.evidence.case import Case, judge_all, judge_first, says_more
from ftlaunch.launcher.evidence.diagnosis import NodeEvidence
from ftlaunch.launcher.evidence.inquiry import Inquiry
from ftlaunch.launcher.evidence.oom import OomFacts, OomKill
from ftlaunch.launcher.journal.incident import Diagnosed, Incident, cause_of, from_json, to_json
from ftlaunch.launcher.journal.records import EventLog
from ftlaunch.launcher.narrator import Narrator, Stopped

NOTHING = NodeEvidence()
GROUP = Path("/cgroup/rank")


def silent(local_rank: int) -> list[bytes]:
    return []


def dead(local_rank: int, exit_code: int, at: float = 10.0, words: LastWords | None = None) -> WorkerState:
    return WorkerState(local_rank, 100 + local_rank, WorkerStatus.EXITED, exit_code, at, words)


def failure(kind: FailureKind, local_rank: int | None = 0, **more: Any) -> Failure:
    return Failure(kind, 0, 10.0, "failed", local_rank, **more)


def test_rank_that_we_killed_on_its_way_out_has_the_code_that_it_announced() -> None:
    words = LastWords("ValueError", "no data", exit_code=1, place="train.py:3")
    case = Case(failure(FailureKind.EXCEPTION, words=words), {0: dead(0, -9)}, killed=[100])
    verdict = judge_first(case, NOTHING, silent)
    assert verdict is not None and verdict.kind == "exception"
    assert verdict.sentence == "rank 0 (pid 100) failed with ValueError: no data at train.py:3"
    assert not says_more(verdict)


def test_stalled_rank_was_not_killed_by_somebody_else() -> None:
    case = Case(failure(FailureKind.STALL, exit_code=-9), {0: dead(0, -9), 1: dead(1, -9)}, killed=[100, 101])
    answer = judge_all(case, NOTHING, silent)
    assert answer.verdict is not None and answer.verdict.kind == "stall"
    assert [verdict.kind for verdict in answer.others] == ["stopped_by_us"]


def test_out_of_memory_kill_of_one_rank_explains_the_exception_of_another() -> None:
    words = LastWords("RuntimeError", "Connection closed by peer", exit_code=1)
    workers = {0: dead(0, 1, 10.0, words), 1: dead(1, -9, 10.2)}
    facts = OomFacts((OomKill(GROUP, 1, 64 << 20, 64 << 20),), groups={101: GROUP})
    answer = judge_all(
        Case(failure(FailureKind.EXCEPTION, words=words), workers, first_rank=8), NodeEvidence(facts), silent
    )
    assert answer.verdict is not None and answer.verdict.rank == 9
    assert answer.verdict.sentence.startswith("rank 9 (pid 101) was OOM-killed by the kernel: cgroup limit 64 MiB")
    assert [verdict.rank for verdict in answer.others] == [8]


def test_request_or_peer_is_nobodys_death() -> None:
    workers = {0: dead(0, -9), 1: dead(1, 0)}
    for kind, local_rank in ((FailureKind.REQUEST, 0), (FailureKind.PEER, None), (FailureKind.SPAWN, 2)):
        case = Case(failure(kind, local_rank), workers, killed=[100])
        assert judge_first(case, NOTHING, silent) is None
        assert judge_all(case, NOTHING, silent).verdict is None


def test_stderr_counts_where_there_were_no_words() -> None:
    case = Case(failure(FailureKind.EXIT, exit_code=1), {0: dead(0, 1)})
    verdict = judge_first(case, NOTHING, lambda local_rank: [b"x", b"bind: Address already in use\xff"])
    assert verdict is not None and (verdict.kind, verdict.confidence) == ("port_in_use", "likely")
    assert str(verdict).endswith("(likely)") and says_more(verdict)


def test_incident_keeps_its_diagnosis_and_old_ones_have_none() -> None:
    cause = cause_of(failure(FailureKind.EXIT))
    verdict = Diagnosed("exit", "rank 0 exited with code 1", "certain", "a hint", 0)
    incident = Incident(0, cause, "restart", "because", diagnosis=verdict, others=(verdict,), progress="rank 0 1.0 s")
    shape = to_json(incident)
    assert from_json(shape) == incident
    for name in ("diagnosis", "others", "progress"):
        del shape[name]
    assert from_json(shape).diagnosis is None and from_json(shape).others == ()


class Facts:
    """A rank that wrote one line."""

    def tail(self, generation: int, local_rank: int) -> list[bytes]:
        return [b"OSError: [Errno 28] No space left on device"]

    def ages(self, at: float) -> dict[int, float]:
        return {0: 0.5}

    def xids(self) -> list[Any]:
        return []

    def gpus(self) -> dict[int, str]:
        return {}

    def ended_by_guardian(self) -> bool:
        return False

    def warn(self, text: str) -> None:
        raise AssertionError(text)


class Nodelike:
    """Has an inquiry."""

    def __init__(self) -> None:
        self.inquiry: Inquiry | None = None

    def inquire(self) -> Inquiry:
        return Inquiry(Facts())


class Said:
    """Takes the place of the launcher's voice."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def notice(self, text: str) -> None:
        self.lines.append(text)


def test_failure_is_told_before_anything_that_follows_from_it() -> None:
    said = Said()
    narrator = Narrator(EventLog(None, said.notice), None, said, Stopped)  # type: ignore[arg-type]
    narrator.node = Nodelike()
    workers = {0: dead(0, 1)}
    state = State(slots=1, generation=0, workers=workers)

    async def play() -> None:
        cause = failure(FailureKind.EXIT, exit_code=1)
        narrator.record(do.Record("failure_detected", 0, fields={"at": 10.0}), state)
        narrator.conclude(do.Conclude(cause, True, "restart 1"), state)
        assert said.lines == [], "the kill comes first"
        narrator.record(do.Record("workers_stopped", 0), state)
        narrator.record(do.Record("workers_started", 1), state)
        narrator.record(do.Record("training_resumed", 1), state)

    asyncio.run(play())
    assert said.lines[0].startswith("rank 0 (pid 100) could not write: the disk or quota is full")
    assert said.lines[0].splitlines()[0].endswith("; restart 1") and "\nhint: free space" in said.lines[0]
    assert said.lines[1].startswith("training goes on")
    narrator.settle()
    assert len(said.lines) == 2, "a closer look found the same"
    assert narrator.incident is not None and narrator.incident.progress == ""
    assert [event["kind"] for event in narrator._events.recent if event["event"] == "diagnosed"] == ["disk_full"]
