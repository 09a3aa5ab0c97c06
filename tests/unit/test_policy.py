"""The restart policy: what happens, with which options, leads to how many restarts, which exit code and last line."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ftlaunch.launcher.config import RestartBudget, RestartConfig
from ftlaunch.launcher.decision.generations import MAX_PORT_RETRIES, GenerationRecord, poisoned_paths, replay
from ftlaunch.launcher.decision.policy import Verdict, backoff_s, judge

KILLED = GenerationRecord(0, "signal", 0.0, exit_code=-9)
RAISED = GenerationRecord(0, "exception", 0.0, exit_code=1, exception="RuntimeError", place="train.py:10")
EXITED = GenerationRecord(0, "exit", 0.0, exit_code=3)
STALLED = GenerationRecord(0, "stall", 0.0, exit_code=-9, beaten=True)
PORT = GenerationRecord(0, "exception", 0.0, 1, "DistNetworkError", message="listen failed: EADDRINUSE")
JOINED = GenerationRecord(0, "membership", 0.0)
IMPORT = replace(RAISED, exception="builtins.ModuleNotFoundError")

DEFAULT = RestartConfig()
GENERATIONS = 120
N = {number: RestartConfig(max_restarts=number) for number in (0, 1, 2, 3, 10)}


def at(record: GenerationRecord, step: int, **more: object) -> GenerationRecord:
    """The same with a step told by the script."""
    return replace(record, beaten=True, step=step, **more)  # type: ignore[arg-type]


def ticked(record: GenerationRecord, ticks: int, **more: object) -> GenerationRecord:
    """The same with optimizer steps counted by the hooks."""
    return replace(record, beaten=True, ticks=ticks, **more)  # type: ignore[arg-type]


def run(fates: Sequence[GenerationRecord], config: RestartConfig) -> tuple[int, Verdict, list[Verdict]]:
    """Let generations meet their fates one after the other, the last one for ever; gives counted restarts and the end.

    Every generation takes ten seconds.
    """
    history: list[GenerationRecord] = []
    verdicts: list[Verdict] = []
    for number in range(GENERATIONS):
        fate = fates[min(number, len(fates) - 1)]
        history.append(replace(fate, generation=number, ended_at=10.0 * (number + 1)))
        verdicts.append(judge(history, history[-1].ended_at, config))
        if not verdicts[-1].restart:
            break
    return sum(v.counts for v in verdicts[:-1]), verdicts[-1], verdicts


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    fates: list[GenerationRecord]
    config: RestartConfig
    restarts: int
    exit_code: int | None
    last_line: str


TABLE = [
    # --max-restarts N: a total, as torchrun
    Row("N=0", [at(EXITED, 5)], N[0], 0, 3, "exit code 3, and no restart is allowed (--max-restarts 0)"),
    Row("N=2", [at(EXITED, 5)], N[2], 2, 3, "exit code 3, and all 2 restarts are used up (--max-restarts 2)"),
    Row("N=1 signal", [at(KILLED, 5)], N[1], 1, 137, "death by SIGKILL, and the only restart is used up"),
    Row(
        "N is a total, progress or not", [at(EXITED, s) for s in (1, 2, 3, 4)], N[3], 3, 3, "all 3 restarts are used up"
    ),
    Row("N: any failure at the start is tried again", [EXITED], N[2], 2, 3, "all 2 restarts are used up"),
    Row("N: the same exception is tried again", [at(RAISED, 7)], N[3], 3, 1, "all 3 restarts are used up"),
    Row("N: node changes are free", [JOINED, JOINED, at(EXITED, 5)], N[1], 1, 3, "the only restart is used up"),
    Row("N: three taken ports are free", [PORT, PORT, PORT, at(EXITED, 5)], N[0], 0, 3, "no restart is allowed"),
    Row("N: the fourth taken port counts", [PORT], N[1], 1, 1, "the only restart is used up"),
    Row("N: stall", [STALLED], N[1], 1, 137, "a stalled rank, and the only restart is used up"),
    # nothing given: as long as there is progress
    Row("no progress", [at(KILLED, 5)], DEFAULT, 3, 76, "3 generations in a row made no progress"),
    Row("no progress from the start", [KILLED], DEFAULT, 2, 76, "3 generations in a row made no progress"),
    Row("stalls without progress", [STALLED], DEFAULT, 2, 76, "the last one ended by a stalled rank"),
    Row(
        "progress starts the count again",
        [at(KILLED, s) for s in (5, 5, 5, 6, 6, 6, 6)],
        DEFAULT,
        6,
        76,
        "3 generations in a row made no progress, the last one ended by death by SIGKILL",
    ),
    Row(
        "limit of 1", [at(KILLED, 5)], RestartConfig(max_no_progress=1), 1, 76, "1 generation in a row made no progress"
    ),
    Row(
        "later complete checkpoint is progress",
        [at(KILLED, 9, checkpoint_step=s) for s in (1, 2, 3, 4)],
        DEFAULT,
        6,
        76,
        "3 generations in a row",
    ),
    Row(
        "a checkpoint whose step nobody knows is progress",
        [replace(KILLED, beaten=True, checkpoints=1)] * 6 + [replace(KILLED, beaten=True)],
        DEFAULT,
        8,
        76,
        "3 generations in a row",
    ),
    Row("more optimizer steps", [ticked(KILLED, t) for t in (5, 6, 7, 7)], DEFAULT, 5, 76, "3 generations in a row"),
    Row(
        "optimizer steps don't count where the script tells its own",
        [at(KILLED, 5, ticks=t) for t in (5, 6, 7, 8, 9)],
        DEFAULT,
        3,
        76,
        "3 generations in a row",
    ),
    Row(
        "the step it resumed from is no progress",
        [at(KILLED, 90, resume_from="/c/90", resume_step=90)],
        DEFAULT,
        2,
        76,
        "3 generations in a row",
    ),
    Row("node changes without any progress", [JOINED], DEFAULT, 0, 76, "the nodes changed 100 times in a row"),
    Row(
        "a node change is no failure in between",
        [at(KILLED, 5), at(KILLED, 5), JOINED, at(KILLED, 5), JOINED, at(KILLED, 5)],
        DEFAULT,
        3,
        76,
        "3 generations in a row",
    ),
    # deterministic failures
    Row(
        "same exception, place and step",
        [at(RAISED, 7)],
        DEFAULT,
        1,
        76,
        "the same RuntimeError in train.py:10 at step 7 ended generations 0 and 1: a restart would meet it again",
    ),
    Row(
        "same step of the failed rank, others ahead of it",
        [at(RAISED, 51, failed_step=50), at(RAISED, 52, failed_step=50)],
        DEFAULT,
        1,
        76,
        "at step 50 ended generations 0 and 1",
    ),
    Row(
        "same optimizer steps of the failed rank, others ahead of it",
        [ticked(RAISED, 41, failed_ticks=40), ticked(RAISED, 42, failed_ticks=40)],
        DEFAULT,
        1,
        76,
        "after 40 optimizer steps ended generations 0 and 1",
    ),
    Row(
        "another step of the failed rank, though the others came equally far",
        [at(RAISED, 51, failed_step=s) for s in (50, 49, 48, 47)],
        DEFAULT,
        3,
        76,
        "3 generations in a row",
    ),
    Row("same at another step", [at(RAISED, s) for s in (7, 8, 9, 9)], DEFAULT, 3, 76, "at step 9 ended generations 2"),
    Row(
        "another place each time",
        [at(replace(RAISED, place=f"train.py:{line}"), 7) for line in (1, 2, 3, 4)],
        DEFAULT,
        3,
        76,
        "3 generations in a row",
    ),
    Row("same after as many optimizer steps", [ticked(RAISED, 40)], DEFAULT, 1, 76, "after 40 optimizer steps ended"),
    Row(
        "other number of optimizer steps",
        [ticked(RAISED, t) for t in (40, 39, 38, 37)],
        DEFAULT,
        3,
        76,
        "3 generations in a row",
    ),
    Row(
        "the network failing twice proves nothing",
        [at(replace(RAISED, exception="torch.distributed.DistBackendError"), 7)],
        DEFAULT,
        3,
        76,
        "3 generations in a row",
    ),
    # failures before the first sign of work
    Row("import error", [IMPORT], DEFAULT, 0, 1, "ModuleNotFoundError in train.py:10 before the first step"),
    Row("import error, whatever N", [IMPORT], N[10], 0, 1, "a restart cannot help"),
    Row("syntax error", [replace(RAISED, exception="SyntaxError")], N[10], 0, 1, "a restart cannot help"),
    Row("missing script", [replace(RAISED, exception="FileNotFoundError", place="")], N[10], 0, 1, "cannot help"),
    Row("spawn", [GenerationRecord(0, "spawn", 0.0, message="no such file")], N[10], 0, 2, "(no such file)"),
    Row("import error after a node change", [JOINED, IMPORT], DEFAULT, 0, 1, "a restart cannot help"),
    Row(
        "import error later on", [at(KILLED, 5), IMPORT], DEFAULT, 2, 76, "the same ModuleNotFoundError in train.py:10"
    ),
    Row("any exception", [RAISED], DEFAULT, 0, 1, "before the first step of the first generation"),
    Row("any exit code", [EXITED], DEFAULT, 0, 3, "exit code 3 before the first step of the first generation"),
    Row("but not after hours", [replace(EXITED, uptime_s=7200.0)], DEFAULT, 2, 76, "3 generations in a row"),
    Row("and not the network", [replace(RAISED, exception="ConnectionRefusedError")], DEFAULT, 2, 76, "3 generations"),
    Row("a taken port is not that", [PORT], DEFAULT, 2, 76, "3 generations in a row"),
    # exit codes
    Row("fatal code", [at(EXITED, 5)], RestartConfig(fatal_exit_codes=frozenset({3})), 0, 3, "in --fatal-exit-codes"),
    Row(
        "fatal code, whatever N",
        [at(KILLED, 5)],
        RestartConfig(max_restarts=9, fatal_exit_codes=frozenset({137})),
        0,
        137,
        "exit code 137 is in --fatal-exit-codes",
    ),
    Row("code to retry at the start", [EXITED], RestartConfig(retry_exit_codes=frozenset({3})), 2, 76, "3 generations"),
    Row(
        "code to retry, same exception",
        [at(RAISED, 7)],
        RestartConfig(retry_exit_codes=frozenset({1})),
        3,
        76,
        "3 generations in a row",
    ),
    # requests
    Row(
        "asked to restart without progress",
        [replace(KILLED, kind="request", exit_code=None, message="new data", beaten=True)],
        N[2],
        2,
        None,
        "a restart on request (new data), and all 2 restarts are used up",
    ),
    # --restart-budget
    Row(
        "budget",
        [at(KILLED, 5)],
        RestartConfig(budget=RestartBudget(5, 3600.0)),
        5,
        137,
        "death by SIGKILL, after 5 restarts within 3600 s (--restart-budget)",
    ),
    Row(
        "budget does not replace the rules that stop at once",
        [at(RAISED, 7)],
        RestartConfig(budget=RestartBudget(5, 3600.0)),
        1,
        76,
        "the same RuntimeError",
    ),
    Row(
        "budget and N",
        [at(KILLED, 5)],
        RestartConfig(max_restarts=9, budget=RestartBudget(2, 3600.0)),
        2,
        137,
        "after 2 restarts within 3600 s",
    ),
    # poisoned checkpoints
    Row(
        "dies loading one checkpoint, then the one before",
        [at(KILLED, 9), replace(RAISED, resume_from="/c/9"), replace(RAISED, resume_from="/c/8")],
        DEFAULT,
        2,
        76,
        "while loading /c/8, as before while loading /c/9: not the checkpoint's fault",
    ),
    Row(
        "there is none before",
        [replace(RAISED, resume_from="/c/9")],
        DEFAULT,
        1,
        76,
        "while loading /c/9, for the second time",
    ),
    Row(
        "killed from outside while loading is not the checkpoint's doing",
        [replace(KILLED, resume_from="/c/9")],
        DEFAULT,
        2,
        76,
        "3 generations in a row",
    ),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_table(row: Row) -> None:
    restarts, last, verdicts = run(row.fates, row.config)
    assert (restarts, last.exit_code) == (row.restarts, row.exit_code), [v.reason for v in verdicts]
    assert not last.restart
    assert row.last_line in last.reason


def test_budget_forgets_what_is_long_ago() -> None:
    # One failure in ten seconds, two allowed in fifteen: never used up.
    _, last, verdicts = run([at(KILLED, 5)], RestartConfig(budget=RestartBudget(2, 15.0)))
    assert last.restart
    assert len(verdicts) == GENERATIONS


def test_asked_restart_with_progress_is_free() -> None:
    asked = replace(KILLED, kind="request", exit_code=None, message="new data")
    restarts, _, verdicts = run([at(asked, s) for s in range(1, 6)] + [at(EXITED, 6)], N[0])
    assert restarts == 0
    assert [v.restart for v in verdicts] == [True] * 5 + [False]
    assert verdicts[0].reason == "the script asked for a restart after it reached step 1: not counted"


def test_every_restart_says_why_with_numbers() -> None:
    _, _, verdicts = run([at(KILLED, 5), at(KILLED, 9), at(KILLED, 9)], DEFAULT)
    assert verdicts[0].reason == "restart 1: death by SIGKILL, but it reached step 5"
    assert verdicts[1].reason == "restart 2: death by SIGKILL, but it reached step 9, before 5"
    assert verdicts[2].reason == "restart 3: death by SIGKILL, 1 of 3 generations without progress"
    _, _, verdicts = run([PORT], DEFAULT)
    assert verdicts[1].reason == "a port was taken at start-up: free retry 2 of 3"
    _, _, verdicts = run([at(EXITED, 1)], N[2])
    assert verdicts[1].reason == "restart 2 of 2 after exit code 3"


def test_first_death_while_loading_falls_back() -> None:
    history = [at(KILLED, 9), replace(RAISED, generation=1, resume_from="/c/9", resume_step=9)]
    verdict = judge(history, 0.0, DEFAULT)
    assert verdict.restart
    assert "while loading /c/9, the next generation resumes from the one before it" in verdict.reason
    assert poisoned_paths(history) == {"/c/9"}


def test_a_new_job_that_resumes_also_falls_back() -> None:
    first = replace(RAISED, resume_from="/c/9", resume_step=9)
    assert judge([first], 0.0, DEFAULT).restart
    assert poisoned_paths([first]) == {"/c/9"}


@pytest.mark.parametrize("signum", [6, 7, 11])
def test_a_crash_while_loading_counts_as_the_checkpoints_doing(signum: int) -> None:
    assert poisoned_paths([replace(KILLED, exit_code=-signum, resume_from="/c/9")]) == {"/c/9"}


def test_only_one_fallback_and_it_is_taken_back_when_saved_again() -> None:
    died = replace(RAISED, resume_from="/c/9", resume_step=9)
    again = replace(RAISED, resume_from="/c/8", resume_step=8)
    assert poisoned_paths([died, again]) == {"/c/9"}
    short = at(KILLED, 8, resume_from="/c/8", resume_step=8)
    assert poisoned_paths([died, short]) == {"/c/9"}
    saved = at(KILLED, 12, resume_from="/c/8", resume_step=8, checkpoints=1, checkpoint_step=9)
    assert poisoned_paths([died, saved]) == frozenset()


def test_backoff() -> None:
    assert [backoff_s(idle, 0.0) for idle in range(10)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_s(2, 1.0) == 1.25
    assert backoff_s(100_000, 1.0) == 60
    _, _, verdicts = run([at(KILLED, 5)], N[10])
    assert [v.delay_s for v in verdicts] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 0]
    _, _, verdicts = run([at(KILLED, 5), at(KILLED, 5), at(KILLED, 5), at(KILLED, 6)], N[10])
    assert [v.delay_s for v in verdicts[:5]] == [0, 0, 1, 0, 0], "progress ends the back-off"
    assert all(v.delay_s == 0 for v in run([JOINED], DEFAULT)[2])


def test_failure_on_another_node_counts_here_too() -> None:
    peer = GenerationRecord(0, "peer", 0.0, beaten=True, step=4)
    restarts, last, _ = run([peer], N[2])
    assert (restarts, last.exit_code) == (2, None)
    assert "a failure on another node, and all 2 restarts are used up" in last.reason


def test_an_empty_history_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no generation"):
        judge([], 0.0, DEFAULT)


records = st.builds(
    GenerationRecord,
    generation=st.just(0),
    kind=st.sampled_from(["exit", "signal", "exception", "stall", "spawn", "peer", "request", "membership", "lease"]),
    ended_at=st.floats(0, 1e6),
    exit_code=st.one_of(st.none(), st.integers(-64, 255)),
    exception=st.sampled_from(["", "RuntimeError", "ImportError", "a.b.ConnectionError"]),
    place=st.sampled_from(["", "a.py:1"]),
    message=st.sampled_from(["", "EADDRINUSE"]),
    beaten=st.booleans(),
    step=st.one_of(st.none(), st.integers(0, 50)),
    ticks=st.integers(0, 50),
    checkpoints=st.integers(0, 2),
    checkpoint_step=st.one_of(st.none(), st.integers(0, 50)),
    resume_from=st.sampled_from([None, "/c/1", "/c/2"]),
)


@given(st.lists(records, min_size=1, max_size=12), st.one_of(st.none(), st.integers(0, 5)))
def test_any_history_has_one_answer_with_a_reason(history: list[GenerationRecord], total: int | None) -> None:
    verdict = judge(history, 1e6, RestartConfig(max_restarts=total))
    assert verdict.reason
    assert "\n" not in verdict.reason
    assert 0 <= verdict.delay_s <= 60
    assert verdict.restart or verdict.exit_code is None or 0 <= verdict.exit_code <= 255
    assert len(poisoned_paths(history)) <= 2


@given(st.lists(records.filter(lambda r: r.kind not in ("membership", "lease")), min_size=1), st.integers(0, 4))
def test_a_total_is_never_exceeded(fates: list[GenerationRecord], total: int) -> None:
    restarts, last, _ = run(fates, RestartConfig(max_restarts=total))
    assert restarts <= total
    assert not last.restart or fates[-1].kind == "request"


@given(st.lists(records, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_without_progress_every_job_comes_to_an_end(fates: list[GenerationRecord], chance: random.Random) -> None:
    # A limit of its own for each kind; at worst they alternate. What a peer's failure ended is the peer's to end.
    still = [replace(fate, beaten=False, step=None, ticks=0, checkpoints=0, checkpoint_step=None) for fate in fates]
    still = [fate for fate in still if fate.kind != "peer"]
    assume(still)
    config = RestartConfig(max_membership_changes=5)
    most = (config.max_no_progress + MAX_PORT_RETRIES) * (config.max_membership_changes + 1)
    history: list[GenerationRecord] = []
    while len(history) <= most:
        history.append(replace(chance.choice(still), generation=len(history), ended_at=10.0 * len(history)))
        if not judge(history, history[-1].ended_at, config).restart:
            return
    raise AssertionError([record.kind for record in history])


def test_generations_that_other_nodes_ended_are_not_held_against_this_one() -> None:
    """Only the node whose rank failed can judge; two such in a row and a first failure here are no three."""
    peers = [GenerationRecord(number, "peer", float(number), beaten=True, ticks=9) for number in range(1, 3)]
    ours = GenerationRecord(3, "signal", 3.0, exit_code=-9, beaten=True, ticks=5)
    first = GenerationRecord(0, "signal", 0.0, exit_code=-9, beaten=True, ticks=100)
    verdict = judge([first, *peers, ours], 4.0, DEFAULT)
    assert verdict.restart and verdict.delay_s == 0.0


def test_checkpoints_that_no_hook_heard_of_are_known_by_what_is_resumed_from() -> None:
    """Each life is shorter than the first one, and each goes on where the one before has saved."""
    lives = [ticked(KILLED, 150)]
    for step in range(150, 600, 80):
        lives.append(ticked(KILLED, 100 - step // 10, resume_from=f"/c/{step}", resume_step=step))
    verdicts = run(lives, DEFAULT)[2]
    assert [verdict.restart for verdict in verdicts[: len(lives)]] == [True] * len(lives)
    assert "but it went on after step 230, before 150" in verdicts[2].reason
    stuck = run([lives[0], lives[1]], DEFAULT)[1]
    assert not stuck.restart and "3 generations in a row made no progress" in stuck.reason


def test_a_newer_checkpoint_that_cannot_be_loaded_is_no_progress() -> None:
    loaded = replace(RAISED, generation=1, resume_from="/c/9", resume_step=9)
    assert [one.progress for one in replay([ticked(KILLED, 5), loaded])] == ["it made 5 optimizer steps", ""]


def test_optimizer_steps_alone_are_told_with_what_would_tell_more() -> None:
    reason = run([ticked(KILLED, 150), ticked(KILLED, 100)], DEFAULT)[2][1].reason
    assert "1 of 3 generations without progress (100 optimizer steps, 150 at most; a checkpoint or" in reason
