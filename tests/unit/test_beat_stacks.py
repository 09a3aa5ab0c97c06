"""Stacks read from text, ranks grouped by them, and the suspect named."""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.heartbeat import stackdump
from ftlaunch.heartbeat.evidence import Collection, blame, examine
from ftlaunch.heartbeat.procstate import KernelWait, ProcState
from ftlaunch.heartbeat.stackread import (
    Frame,
    StackSnapshot,
    ThreadStack,
    is_library,
    parse_faulthandler,
    parse_pyspy,
    user_frame,
)
from ftlaunch.heartbeat.suspects import (
    RankEvidence,
    blame_silence,
    describe_groups,
    doing,
    group_ranks,
    is_waiting,
    render,
    suspect,
)
from support.beats import FIRST_PID, Node

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
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE, steps=9)], (1,), id="a step behind"),
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE, age_s=400.0)], (1,), id="silent longer"),
        pytest.param([at(0, ALL_REDUCE), at(1, ALL_REDUCE)], (), id="the network, or another node"),
        pytest.param([at(0, ALL_REDUCE), at(1), at(2)], (), id="no stacks to speak of"),
        pytest.param([at(0, LOADING), at(1, STARVED), at(2, ALL_REDUCE)], (0, 1), id="two work"),
        pytest.param([at(0, LOADING), at(1, STARVED, steps=9), at(2, ALL_REDUCE)], (1,), id="two work, one is behind"),
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


def test_D6_the_silent_rank_is_named_by_the_ages_of_progress() -> None:
    evidence = [at(rank, age_s=412.0 if rank == 3 else 8.0, steps=4 if rank == 3 else 90) for rank in range(4)]
    found = blame_silence(evidence, reported=[0])
    assert found.ranks == (3,)
    assert "rank 3 last made progress 412 s ago (step 4), the others at most 8.00 s ago" in found.sentence


def test_D6_when_all_fell_silent_together_the_one_that_did_not_give_up_is_named() -> None:
    found = blame_silence([at(0), at(1, age_s=5.1), at(2)], reported=[0, 2])
    assert found.ranks == (1,) and "ranks 0, 2 gave up waiting, rank 1 did not" in found.sentence
    assert blame_silence([at(0), at(1)], reported=[0, 1]).ranks == ()


def test_D6_from_what_was_heard() -> None:
    node = Node(2)
    now = node.train(0.0, 10, 1.0)
    now = node.train(now, 5, 1.0, ranks=[0])
    node.tracks.exited(0, -6, now + 3)
    found = blame(node.tracks, now + 3, aborted=[0])
    assert found.ranks == (1,) and "step 10" in found.sentence


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
    for found in (suspect(evidence), blame_silence(evidence, [0])):
        assert set(found.ranks) <= set(range(max(1, len(ranks))))
        assert found.sentence and "\n" not in found.sentence
        assert render(found, evidence)


# -- collecting -----------------------------------------------------------------------------------------------------

ARMED = 1 << (stackdump.DUMP_SIGNAL - 1)


class Files:
    """The dump files of some ranks."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.cleared: list[int] = []
        self.sent: list[int] = []

    def clear(self, local_rank: int) -> None:
        self.cleared.append(local_rank)
        self.texts[local_rank] = ""

    def send(self, pid: int, signum: int) -> None:
        assert signum == stackdump.DUMP_SIGNAL
        self.sent.append(pid)

    def read(self, local_rank: int) -> bytes:
        return self.texts.get(local_rank, "").encode()


def test_only_who_has_the_handler_and_can_run_it_is_asked() -> None:
    states = {
        0: ProcState(10, "S", caught=ARMED),
        1: ProcState(11, "S", caught=0),
        2: ProcState(12, "T", caught=ARMED),
        3: ProcState(13, "R", caught=ARMED),
        4: ProcState(14, "Z", caught=ARMED),
        5: ProcState(15, "D", caught=ARMED),
    }
    files, collection = Files(), Collection(states)
    collection.ask(files.send, files.clear)
    assert files.sent == [10, 13, 15] and files.cleared == [0, 3, 5]
    assert not collection.complete(files.read)
    files.texts = {0: DUMP, 3: DUMP[:100]}
    assert not collection.complete(files.read), "it may be in the middle of writing"
    files.texts[3] = DUMP
    assert not collection.complete(files.read)
    assert collection.complete(files.read), "nothing was added since; nobody waits for a process in state D"
    assert set(collection.unanswered()) == {1, 2, 4, 5}
    collection.take_pyspy(1, 'Thread 11 (idle): "MainThread"\n    f (a.py:1)\n')
    assert collection.snapshot(1).main == (Frame("a.py", 1, "f"),)


def test_a_process_that_is_gone_meanwhile_is_not_waited_for() -> None:
    def gone(pid: int, signum: int) -> None:
        raise ProcessLookupError(3, "No such process")

    files, collection = Files(), Collection({0: ProcState(10, "S", caught=ARMED)})
    collection.ask(gone, files.clear)
    assert collection.complete(files.read) and collection.snapshot(0) == StackSnapshot()


def test_a_dump_that_was_still_being_written_when_time_was_over_is_used() -> None:
    files, collection = Files(), Collection({0: ProcState(10, "S", caught=ARMED)})
    collection.ask(files.send, files.clear)
    files.texts[0] = DUMP[:-3]
    assert not collection.complete(files.read)
    assert collection.snapshot(0).cut_off and collection.snapshot(0).main == LOADING[:1]


def test_everything_comes_together_for_the_incident() -> None:
    node = Node(2)
    now = node.train(0.0, 10, 1.0)
    node.tracks.first_rank = 4
    states = {0: ProcState(FIRST_PID, "S", caught=ARMED), 1: ProcState(FIRST_PID + 1, "R", caught=ARMED)}
    files, collection = Files(), Collection(states)
    collection.ask(files.send, files.clear)
    lines = "".join(f'  File "{frame.file}", line {frame.line} in {frame.function}\n' for frame in ALL_REDUCE)
    files.texts = {0: f"Current thread 0x1 (most recent call first):\n{lines}", 1: DUMP}
    collection.complete(files.read)
    assert collection.complete(files.read)
    waits = {0: KernelWait("S", "futex_wait"), 1: KernelWait("R", "", ("do_something+0x1/0x2",))}
    suspicion, blocks = examine(node.tracks, collection, waits, now + 12)
    text = "\n".join(blocks)
    assert suspicion.rank == 5
    assert "rank 4: state S, kernel: futex_wait, last progress 12.0 s ago, step 10" in text
    assert "rank 5, kernel stack:\n  do_something" in text
    assert "rank 5, all threads (faulthandler):" in text and "rank 4, all threads" not in text


def test_D6_ages_decide_when_an_abort_left_no_stack_at_all() -> None:
    node = Node(2)
    now = node.train(0.0, 10, 1.0)
    now = node.train(now, 5, 1.0, ranks=[0])
    node.tracks.exited(0, -6, now + 3)
    suspicion, blocks = examine(node.tracks, Collection({1: ProcState(FIRST_PID + 1, "S")}), {}, now + 3)
    assert suspicion.ranks == (1,)
    assert "rank 0: ended with -6" in "\n".join(blocks)


def test_modules_of_this_test_do_not_come_from_a_library() -> None:
    assert sys.modules[__name__].__file__ is not None and not is_library(__file__)
