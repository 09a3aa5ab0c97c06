"""One verdict per rank, and who of them brought the others down."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ftlaunch.launcher.evidence.classify import classify
from ftlaunch.launcher.evidence.culprit import describe_ages, investigate
from ftlaunch.launcher.evidence.diagnosis import Confidence, Diagnosis, Kind, NodeEvidence, RankEvidence
from ftlaunch.launcher.evidence.kernel_log import KilledProcess
from ftlaunch.launcher.evidence.oom import OomFacts, OomKill
from ftlaunch.launcher.gpu.model import XidEvent

MIB, GIB = 1 << 20, 1 << 30
GROUP = Path("/sys/fs/cgroup/job")
KILL = OomKill(GROUP, 1, 64 * MIB, 64 * MIB)


def rank(number: int = 3, code: int | None = None, **more: object) -> RankEvidence:
    return RankEvidence(number, 4708 + number, code, **more)  # type: ignore[arg-type]


def oom(*kills: OomKill, named: tuple[int, ...] = ()) -> NodeEvidence:
    killed = tuple(KilledProcess(pid, "python", False, 60 * MIB) for pid in named)
    return NodeEvidence(OomFacts(kills, killed, {4708 + number: GROUP for number in range(8)}))


def verdict(evidence: RankEvidence, node: NodeEvidence = NodeEvidence(), killed: int = 1) -> Diagnosis:  # noqa: B008
    found = classify(evidence, node, killed)
    assert found is not None
    return found


def test_oom_kill_with_limit_and_peak() -> None:
    found = verdict(rank(3, -9), oom(KILL))
    assert found.sentence == "rank 3 (pid 4711) was OOM-killed by the kernel: cgroup limit 64 MiB, peak 64 MiB"
    assert (found.kind, found.confidence, found.rank) == (Kind.OUT_OF_MEMORY, Confidence.CERTAIN, 3)
    assert "num_workers" in found.hint


def test_oom_kill_of_the_machine() -> None:
    found = verdict(rank(3, -9), oom(OomKill(GROUP, 1, None, None, True, 12 * GIB)))
    assert found.sentence == (
        "rank 3 (pid 4711) was OOM-killed by the kernel: the machine, or a group above, ran out of memory, "
        "it held 12 GiB"
    )


def test_oom_kill_counted_for_fewer_than_died_is_only_likely() -> None:
    assert verdict(rank(3, -9), oom(KILL), killed=2).confidence is Confidence.LIKELY
    assert verdict(rank(3, -9), oom(KILL, named=(4711,)), killed=2).confidence is Confidence.CERTAIN


def test_a_kill_from_a_shell_is_not_an_oom_kill() -> None:
    found = verdict(rank(3, -9), oom())
    assert found.kind is Kind.KILLED_BY_OTHERS and found.confidence is Confidence.CERTAIN
    assert found.sentence == (
        "rank 3 (pid 4711) was killed with SIGKILL by somebody else: not by ftlaunch, and not for lack of memory"
    )
    unseen = verdict(rank(3, -9))
    assert unseen.kind is Kind.KILLED_BY_OTHERS and unseen.confidence is Confidence.POSSIBLE
    assert verdict(rank(3, -9), oom(KILL, named=(9999,))).kind is Kind.KILLED_BY_OTHERS


def test_our_own_kill_is_called_so_whatever_the_counters_say() -> None:
    found = verdict(rank(0, -9, stopped_by_us=True), oom(KILL))
    assert (found.kind, found.sentence) == (Kind.STOPPED_BY_US, "rank 0 (pid 4708) was stopped by ftlaunch")
    assert found.victim


def test_a_wrapper_that_passes_on_137() -> None:
    assert verdict(rank(3, 137), oom(KILL, named=(9999,))).kind is Kind.OUT_OF_MEMORY
    assert verdict(rank(3, 137), oom()).kind is Kind.KILLED_BY_OTHERS


def test_an_oom_killed_data_loader_worker() -> None:
    words = {"exception": "RuntimeError", "message": "DataLoader worker (pid 512) is killed by signal: Killed. "}
    found = verdict(rank(3, 1, **words), oom(KILL, named=(512,)))
    assert found.kind is Kind.OUT_OF_MEMORY
    assert found.sentence == (
        "rank 3 (pid 4711) lost a data-loader worker: it was OOM-killed by the kernel: cgroup limit 64 MiB, peak 64 MiB"
    )
    assert verdict(rank(3, 1, **words), oom()).kind is Kind.LOADER_KILLED


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total",
            "CUDA_OUT_OF_MEMORY",
        ),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nCuda failure 2 'out of memory'", "CUDA_OUT_OF_MEMORY"),
        ("RuntimeError: unable to write to file </torch_91_2>: No space left on device (28)", "SHARED_MEMORY"),
        ("It is possible that dataloader's workers are out of shared memory. Please try to raise", "SHARED_MEMORY"),
        ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-AbC (size 9637888)", "SHARED_MEMORY"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "SHARED_MEMORY"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/step_10/model.pt'", "DISK_FULL"),
        ("OSError: [Errno 122] Disk quota exceeded", "DISK_FULL"),
        ("OSError: [Errno 24] Too many open files: 'x'", "OPEN_FILES"),
        ("The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE", "PORT_IN_USE"),
        ("OSError: [Errno 98] Address already in use", "PORT_IN_USE"),
        ("./train: cannot execute binary file: Exec format error", "NOT_EXECUTABLE"),
        ("./train: error while loading shared libraries: libcudart.so.12: cannot open", "NOT_EXECUTABLE"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "CUDA_ERROR"),
        ("RuntimeError: CUDA error: device-side assert triggered", "CUDA_ERROR"),
        ("RuntimeError: No CUDA GPUs are available", "CUDA_UNUSABLE"),
        ("RuntimeError: CUDA error: invalid device ordinal", "CUDA_UNUSABLE"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", "OUT_OF_MEMORY"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "OUT_OF_MEMORY"),
        (
            "[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST)",
            "COLLECTIVE_TIMEOUT",
        ),
        (
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv",
            "COLLECTIVE_TIMEOUT",
        ),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:51234", "PEER_LOST"),
        ("ncclRemoteError: A call failed possibly due to a network error", "PEER_LOST"),
        ("RuntimeError: NCCL error: remote process exited or there was a network error", "PEER_LOST"),
    ],
)
def test_what_programs_say(said: str, kind: str) -> None:
    log = f"step 17 loss 2.5\nTraceback (most recent call last):\n{said}\n"
    found = verdict(rank(1, 1, stderr=log))
    assert found.kind is Kind[kind] and found.confidence is Confidence.LIKELY
    assert "\n" not in found.sentence and len(found.sentence) < 350
    name, _, message = said.partition(": ")
    by_words = verdict(rank(1, 1, exception=name, message=message, stderr="No space left on device"))
    assert by_words.kind is Kind[kind] and by_words.confidence is Confidence.CERTAIN


def test_the_line_that_says_it_is_quoted() -> None:
    found = verdict(rank(1, 1, stderr="step 1\nOSError: [Errno 28] No space left on device: '/ckpt/a'\nbye\n"))
    assert found.sentence == (
        "rank 1 (pid 4709) could not write: the disk or quota is full: "
        "OSError: [Errno 28] No space left on device: '/ckpt/a'"
    )


def test_nccl_abort_by_its_watchdog() -> None:
    log = (
        "[rank0]:[E] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1)\nFatal Python error: Aborted\n"
    )
    found = verdict(rank(0, -6, stderr=log))
    assert found.kind is Kind.COLLECTIVE_TIMEOUT and found.victim and "--hang-timeout" in found.hint


def test_old_output_does_not_explain_a_segmentation_fault() -> None:
    found = verdict(
        rank(2, -11, stderr="warning: Connection reset by peer, trying again\n"),
        NodeEvidence(kernel_faults={4710: "libtorch_cuda.so"}),
    )
    assert found.sentence == "rank 2 (pid 4710) died of SIGSEGV in libtorch_cuda.so"


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (rank(1, 3), "rank 1 (pid 4709) exited with code 3"),
        (rank(1, 0), "rank 1 (pid 4709) finished with code 0"),
        (rank(1, -15), "rank 1 (pid 4709) died of SIGTERM"),
        (rank(1, -39), "rank 1 (pid 4709) died of SIGRTMIN+5"),
        (
            rank(1, 1, exception="ValueError", message="boom\nmore", place="train.py:12"),
            "rank 1 (pid 4709) failed with ValueError: boom at train.py:12",
        ),
        (rank(1, None, exception="KeyError", message="'a'"), "rank 1 (pid 4709) failed with KeyError: 'a'"),
        (rank(1, 1, exception="SystemExit", message="no data"), "rank 1 (pid 4709) exited with code 1: no data"),
        (
            rank(1, -9, stalled="no beat for 31 s in step"),
            "rank 1 (pid 4709) made no progress: no beat for 31 s in step",
        ),
    ],
)
def test_plain_ends(evidence: RankEvidence, sentence: str) -> None:
    assert verdict(evidence).sentence == sentence


def test_hints_of_shell_codes() -> None:
    assert verdict(rank(1, 127)).hint == "the command was not found"
    assert "can't be executed" in verdict(rank(1, 126)).hint


def test_a_rank_that_lives_has_no_diagnosis() -> None:
    assert classify(rank(1, None, stderr="No space left on device")) is None


def test_long_and_odd_messages_stay_one_line() -> None:
    found = verdict(rank(1, 1, exception="ValueError", message="\x1b[31m" + "x" * 5000))
    assert len(found.sentence) < 300 and found.sentence.isprintable()


def test_bus_error_and_a_full_dev_shm() -> None:
    full = verdict(rank(1, -7), NodeEvidence(shm_free_fraction=0.0))
    assert (full.kind, full.confidence) == (Kind.SHARED_MEMORY, Confidence.LIKELY)
    assert full.sentence.endswith("a full /dev/shm, 0% of /dev/shm is free") and "--shm-size" in full.hint
    roomy = verdict(rank(1, -7), NodeEvidence(shm_free_fraction=0.9))
    assert roomy.confidence is Confidence.POSSIBLE


def test_xid_of_the_ranks_own_gpu() -> None:
    node = NodeEvidence(xids=(XidEvent("GPU-b", 1, 79), XidEvent("GPU-a", 0, 31)))
    found = verdict(rank(1, -6, gpu_uuid="GPU-b"), node)
    assert found.sentence == (
        "rank 1 (pid 4709) lost its GPU: the driver reported Xid 79 (fallen off the bus) for GPU 1 (GPU-b)"
    )
    assert found.confidence is Confidence.CERTAIN
    words = {"exception": "RuntimeError", "message": "CUDA error: an illegal memory access was encountered"}
    other = verdict(rank(0, 1, gpu_uuid="GPU-a", **words), node)
    assert other.sentence == "rank 0 (pid 4708) had a GPU error: Xid 31 (memory page fault) on GPU 0 (GPU-a)"
    assert verdict(rank(2, 3, gpu_uuid="GPU-c"), node).kind is Kind.EXIT
    assert verdict(rank(2, -6), node).confidence is Confidence.LIKELY
    assert verdict(rank(2, 1, gpu_uuid="GPU-b", exception="ValueError"), node).kind is Kind.EXCEPTION


LOST = {"exception": "RuntimeError", "message": "Connection closed by peer [127.0.0.1]:5"}
ABORTED = {"stderr": "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"}


def test_the_culprit_comes_before_victims_that_died_earlier() -> None:
    found = investigate([
        rank(0, 1, at=10.0, **LOST),
        rank(1, -9, at=10.4),
        rank(2, -9, at=10.5, stopped_by_us=True),
    ], oom(KILL))  # fmt: skip
    assert found.cause is not None and found.cause.rank == 1 and found.cause.kind is Kind.OUT_OF_MEMORY
    assert [(one.rank, one.kind) for one in found.others] == [(0, Kind.PEER_LOST), (2, Kind.STOPPED_BY_US)]
    assert all(one.victim for one in found.others)


def test_of_several_culprits_the_earliest() -> None:
    found = investigate([rank(0, 1, at=3.0, exception="KeyError"), rank(1, 1, at=2.0, exception="ValueError")])
    assert found.cause is not None and found.cause.rank == 1
    assert not any(one.victim for one in found.others)


def test_the_silent_rank_is_named_when_others_abort() -> None:
    """Rank 1 stops and sleeps, rank 0 aborts by its watchdog, we stop what is left."""
    found = investigate([
        rank(0, -6, at=600.0, beat_age_s=8.0, **ABORTED),
        rank(1, -9, at=600.1, beat_age_s=412.0, stopped_by_us=True),
        rank(2, -6, at=600.2, beat_age_s=6.0, **ABORTED),
    ])  # fmt: skip
    assert found.cause is not None
    assert found.cause.sentence == (
        "rank 1 (pid 4709) last progressed 412 s ago, the others at most 8 s: it held up rank 0, 2"
    )
    assert (found.cause.kind, found.cause.confidence) == (Kind.STALL, Confidence.LIKELY)
    assert [one.rank for one in found.others] == [0, 2]


@pytest.mark.parametrize("ages", [(8.0, 9.0), (None, 412.0), (None, None), (0.1, 0.5)])
def test_without_a_clear_laggard_the_first_victim_is_told(ages: tuple[float | None, float | None]) -> None:
    found = investigate([
        rank(0, -6, at=1.0, beat_age_s=ages[0], **ABORTED),
        rank(1, -9, at=2.0, beat_age_s=ages[1], stopped_by_us=True),
    ])  # fmt: skip
    assert found.cause is not None and (found.cause.rank, found.cause.kind) == (0, Kind.COLLECTIVE_TIMEOUT)


def test_a_laggard_that_says_so_itself_is_not_blamed_for_others() -> None:
    found = investigate([rank(0, -6, at=1.0, beat_age_s=500.0, **ABORTED), rank(1, None, beat_age_s=1.0)])
    assert found.cause is not None and (found.cause.rank, found.cause.kind) == (0, Kind.COLLECTIVE_TIMEOUT)


def test_a_stall_that_we_saw_is_the_cause_although_we_killed_it() -> None:
    found = investigate(
        [
            rank(0, -9, at=1.0, stopped_by_us=True),
            rank(1, -9, at=2.0, stopped_by_us=True, stalled="no beat for 31 s in step"),
        ]
    )
    assert found.cause is not None and found.cause.rank == 1


def test_nobody_failed() -> None:
    assert investigate([]).cause is None
    stopped = investigate([rank(0, -15, at=1.0, stopped_by_us=True), rank(1, 0, at=1.0)])
    assert stopped.cause is None and [one.rank for one in stopped.others] == [0, 1]


def test_ages_in_one_line_and_findings_as_json() -> None:
    ranks = [rank(1, 0, beat_age_s=412.04), rank(0, 0, beat_age_s=8.0), rank(2, 0)]
    assert describe_ages(ranks) == "rank 0 8.0 s, rank 1 412.0 s"
    assert json.loads(json.dumps(asdict(investigate([rank(1, 3)]))))["cause"]["kind"] == "exit"
    assert replace(rank(1), rank=2).name == "rank 2 (pid 4709)"
