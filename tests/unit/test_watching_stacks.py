"""Stacks read from text, ranks grouped by them, and the suspect named."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat import stackdump
from ftlaunch.heartbeat.watching.stackread import (
    Frame,
    StackSnapshot,
    ThreadStack,
    is_library,
    parse_faulthandler,
    parse_pyspy,
    user_frame,
)
from ftlaunch.heartbeat.watching.suspects import (
    RankEvidence,
    describe_groups,
    doing,
    group_ranks,
    is_waiting,
    oldest_progress,
    render,
    suspect,
)

SITE = "/venv/lib/python3.11/site-packages"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
LOGGER = f"{SITE}/torch/distributed/c10d_logger.py"
GRAPH = f"{SITE}/torch/autograd/graph.py"

ALL_REDUCE = (
    Frame(C10D, 3094, "all_reduce"),
    Frame(LOGGER, 83, "wrapper"),
    Frame("/home/me/train.py", 60, "step"),
    Frame("/home/me/train.py", 99, "<module>"),
)
BARRIER = (
    Frame(C10D, 4818, "barrier"),
    Frame(LOGGER, 83, "wrapper"),
    Frame("/home/me/train.py", 70, "save"),
    Frame("/home/me/train.py", 99, "<module>"),
)
BACKWARD = (
    Frame(GRAPH, 829, "_engine_run_backward"),
    Frame(f"{SITE}/torch/autograd/__init__.py", 359, "backward"),
    Frame(f"{SITE}/torch/_tensor.py", 626, "backward"),
    Frame("/home/me/train.py", 55, "<module>"),
)
LOADING = (Frame("/home/me/train.py", 88, "read_batch"), Frame("/home/me/train.py", 99, "<module>"))
STARVED = (
    Frame("/usr/lib/python3.11/selectors.py", 415, "select"),
    Frame("/usr/lib/python3.11/multiprocessing/connection.py", 930, "wait"),
    Frame(f"{SITE}/torch/utils/data/dataloader.py", 1289, "_try_get_data"),
    Frame("/home/me/train.py", 50, "<module>"),
)
SAVING = (
    Frame(f"{SITE}/torch/distributed/checkpoint/filesystem.py", 300, "write_data"),
    Frame(f"{SITE}/torch/distributed/checkpoint/utils.py", 200, "all_reduce"),
    Frame("/home/me/train.py", 75, "<module>"),
)


def at(
    rank: int, frames: tuple[Frame, ...] = (), age_s: float = 5.0, steps: int = 10, state: str = "S"
) -> RankEvidence:
    snapshot = StackSnapshot((ThreadStack("0x1", frames),), "faulthandler") if frames else StackSnapshot()
    return RankEvidence(rank, snapshot, state, "", age_s, steps)


# -- reading --------------------------------------------------------------------------------------------------------


def real_dump() -> str:
    """What faulthandler of this very interpreter writes."""
    release = threading.Event()
    other = threading.Thread(target=release.wait, name="other")
    other.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    release.set()
    other.join()
    return text


def test_what_this_interpreter_writes_is_understood() -> None:
    snapshot = parse_faulthandler(real_dump())
    assert len(snapshot.threads) >= 2 and not snapshot.cut_off and snapshot.source == "faulthandler"
    functions = [frame.function for frame in snapshot.main]
    assert "real_dump" in functions
    assert "test_what_this_interpreter_writes_is_understood" in functions
    main = snapshot.main_thread
    assert main is not None and main.current
    frame = snapshot.main[functions.index("real_dump")]
    assert frame.file == __file__ and frame.line > 0


DUMP = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "/home/me/train.py", line 88 in read_batch
  File "/home/me/train.py", line 99 in <module>
"""


def test_the_last_thread_is_the_main_one() -> None:
    snapshot = parse_faulthandler(DUMP)
    assert snapshot.main == LOADING
    assert [thread.current for thread in snapshot.threads] == [False, True]


def test_of_several_dumps_the_last_counts_and_lines_in_between_are_skipped() -> None:
    later = DUMP.replace("line 88", "line 89")
    snapshot = parse_faulthandler(DUMP + "some noise\n" + later)
    assert len(snapshot.threads) == 2
    assert snapshot.main[0].line == 89


def test_thread_names_of_python_3_14() -> None:
    text = DUMP.replace("0x00007f01 (", "0x00007f01 [loader (1)] (").replace("0x00007f02 (", "0x00007f02 [python] (")
    snapshot = parse_faulthandler(text)
    assert [thread.name for thread in snapshot.threads] == ["loader (1)", "python"]
    assert snapshot.main == LOADING


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('  File "???", line ??? in ???', Frame("???", 0, "???")),
        ('  File "/odd "name", line 3 in x.py", line 4 in f', Frame('/odd "name", line 3 in x.py', 4, "f")),
        ('  File "<string>", line 1 in <module>', Frame("<string>", 1, "<module>")),
    ],
)
def test_odd_frames(line: str, frame: Frame) -> None:
    assert parse_faulthandler(f"Current thread 0x1 (most recent call first):\n{line}\n").main == (frame,)


def test_more_than_a_hundred_threads_hide_the_main_one_and_the_current_one_is_taken() -> None:
    head = DUMP.split("\n\n")
    threads = "\n\n".join(head[0].replace("7f01", f"8{index:03}") for index in range(99))
    snapshot = parse_faulthandler(head[1] + "\n" + threads + "\n...\n")
    assert snapshot.cut_off and snapshot.main == LOADING


@pytest.mark.parametrize("end", range(0, len(DUMP), 7))
def test_a_dump_that_ends_in_the_middle(end: int) -> None:
    snapshot = parse_faulthandler(DUMP[:end])
    assert snapshot.cut_off or not end or DUMP[end - 1] == "\n"
    for thread in snapshot.threads:
        assert thread.thread.startswith("0x")


@given(st.text(max_size=300) | st.lists(st.sampled_from(DUMP.splitlines(keepends=True))).map("".join))
def test_any_text_is_survived(text: str) -> None:
    for parse in (parse_faulthandler, parse_pyspy):
        snapshot = parse(text)
        doing(snapshot.main)
        assert snapshot.text == text


def test_pyspy() -> None:
    text = """Process 77: python -u train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 77 (active): "MainThread"
    read_batch (train.py:88)
    <module> (train.py:99)
Thread 78 (idle): "Thread-1"
    wait (threading.py:324)
"""
    snapshot = parse_pyspy(text)
    assert snapshot.main == (Frame("train.py", 88, "read_batch"), Frame("train.py", 99, "<module>"))
    assert len(snapshot.threads) == 2


def test_our_own_frames_are_not_shown() -> None:
    folder = stackdump.__file__.rpartition("/")[0]
    ours = f'  File "{folder}/worker.py", line 50 in main\n  File "{folder}/bootstrap.py", line 24 in <module>\n'
    assert parse_faulthandler(DUMP + ours).main == LOADING


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/me/train.py", False),
        ("train.py", False),
        (f"{SITE}/torch/x.py", True),
        ("/usr/lib/python3/dist-packages/x.py", True),
        ("/opt/conda/lib/python3.12/selectors.py", True),
        ("<frozen importlib._bootstrap>", True),
    ],
)
def test_whose_file_it_is(file: str, expected: bool) -> None:
    assert is_library(file) is expected
    assert user_frame(()) is None


# -- grouping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "waiting", "what"),
    [
        (ALL_REDUCE, True, "all_reduce (distributed_c10d.py:3094)"),
        (BARRIER, True, "barrier (distributed_c10d.py:4818)"),
        (BACKWARD, True, "backward (graph.py:829)"),
        (LOADING, False, "read_batch (train.py:88)"),
        (STARVED, False, "select (train.py:50)"),  # its data loader is dead: a culprit, not a victim
        (SAVING, False, "write_data (train.py:75)"),  # inside of torch.distributed, but it writes
        (
            (Frame(f"{SITE}/torch/cuda/__init__.py", 985, "synchronize"), LOADING[1]),
            True,
            "synchronize (__init__.py:985)",
        ),
        ((Frame("/home/me/dist.py", 3, "barrier"),), False, "barrier (dist.py:3)"),
        ((), False, "an unknown place"),
    ],
)
def test_who_waits_for_others(frames: tuple[Frame, ...], waiting: bool, what: str) -> None:
    assert is_waiting(frames) is waiting
    assert doing(frames) == what


def test_ranks_are_grouped_by_identical_stack_the_largest_group_first() -> None:
    groups = group_ranks([at(0, ALL_REDUCE), at(1, LOADING), at(2, ALL_REDUCE), at(3, ALL_REDUCE)])
    assert [(group.ranks, group.waiting) for group in groups] == [((0, 2, 3), True), ((1,), False)]
    assert (
        describe_groups(groups)
        == "3 ranks in all_reduce (distributed_c10d.py:3094), rank 1 in read_batch (train.py:88)"
    )


def test_different_calls_of_the_same_collective_are_described_together() -> None:
    elsewhere = (ALL_REDUCE[0], ALL_REDUCE[1], Frame("/home/me/train.py", 61, "step"), ALL_REDUCE[3])
    groups = group_ranks([at(0, ALL_REDUCE), at(1, elsewhere), at(2, LOADING)])
    assert len(groups) == 3
    assert describe_groups(groups).startswith("ranks 0-1 in all_reduce")


# -- suspecting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param([at(0, ALL_REDUCE), at(1, LOADING), at(2, ALL_REDUCE), at(3, ALL_REDUCE)], (1,), id="one works"),
        pytest.param([at(0, BACKWARD), at(1, STARVED)], (1,), id="two ranks"),
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE), at(2, BARRIER)], (2,), id="another collective"),
        pytest.param([at(0, LOADING), at(1, LOADING), at(2, STARVED)], (2,), id="nobody waits, the odd one"),
        pytest.param([at(0, ALL_REDUCE), at(1, state="T")], (1,), id="stopped"),
        pytest.param([at(0, ALL_REDUCE), at(1, state="D")], (1,), id="in the kernel"),
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE, steps=9, age_s=5.5)], (1,), id="a step behind"),
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE, age_s=400.0)], (1,), id="silent longer"),
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE)], (), id="the network, or another node"),
        pytest.param([at(0, ALL_REDUCE), at(1), at(2)], (), id="no stacks to speak of"),
        pytest.param([at(0, LOADING), at(1, STARVED), at(2, ALL_REDUCE)], (0, 1), id="two work"),
        pytest.param(
            [at(0, LOADING), at(1, STARVED, steps=9, age_s=5.5), at(2, ALL_REDUCE)], (1,), id="two work, one is behind"
        ),
        pytest.param([at(0, LOADING)], (0,), id="one rank alone"),
        pytest.param([], (), id="nobody"),
    ],
)
def test_the_suspect(evidence: list[RankEvidence], expected: tuple[int, ...]) -> None:
    found = suspect(evidence)
    assert found.ranks == expected
    assert found.rank == (expected[0] if len(expected) == 1 else None)
    assert found.sentence


def test_the_sentence_reads_as_promised() -> None:
    found = suspect([at(0, ALL_REDUCE), at(1, LOADING), at(2, ALL_REDUCE), at(3, ALL_REDUCE)])
    assert found.sentence == (
        "3 ranks in all_reduce (distributed_c10d.py:3094), rank 1 in read_batch (train.py:88): rank 1 is the suspect"
    )
    blocks = render(found, [at(0, ALL_REDUCE), at(1, LOADING)])
    assert blocks[0] == f"suspect: {found.sentence}"
    assert '  File "/home/me/train.py", line 88 in read_batch' in "\n".join(blocks)
    stopped = suspect([at(0, ALL_REDUCE), at(1, state="T")])
    assert stopped.sentence.endswith("rank 1 stopped (state T): rank 1 is the suspect")


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([(412.0, 4), (8.0, 90), (7.0, 90)], 0),  # silent clearly longer
        ([(5.0, 10), (5.05, 6)], None),  # told ten times a second: the last steps may be untold
        ([(5.0, 10), (5.6, 9)], 1),
        ([(5.0, 10), (5.6, 10)], None),
        ([(5.0, 10), (5.6, 9), (5.0, 9)], None),  # not the only one behind
        ([(100.0, 10), (101.1, 10)], None),
        ([(3.0, 1)], 0),
        ([], None),
    ],
)
def test_who_made_progress_least_recently(ranks: list[tuple[float, int]], expected: int | None) -> None:
    found = oldest_progress([at(rank, (), age_s, steps) for rank, (age_s, steps) in enumerate(ranks)])
    assert (found.rank if found is not None else None) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(), ALL_REDUCE, BARRIER, LOADING, STARVED, SAVING]),
            st.floats(0, 1000),
            st.integers(0, 5),
            st.sampled_from("RSDTZ"),
        ),
        max_size=8,
    )
)
def test_a_suspect_is_always_one_of_the_ranks(ranks: list[tuple[tuple[Frame, ...], float, int, str]]) -> None:
    evidence = [at(rank, *facts) for rank, facts in enumerate(ranks)]
    found = suspect(evidence)
    assert set(found.ranks) <= set(range(len(ranks)))
    assert found.sentence and "\n" not in found.sentence
    assert render(found, evidence)
