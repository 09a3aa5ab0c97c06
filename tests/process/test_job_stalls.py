"""Stalls and false alarms with the whole product: tiny scripts that beat, no torch."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import scripts
from support.jobs import Job, Launcher
from support.waiting import wait_until

STALL = ("--hang-floor", "1", "--nproc-per-node", "2", "--max-restarts", "1")


def write(folder: Path, body: str) -> Path:
    return scripts.write(folder, scripts.BEATING + body)


def stalls(job: Job) -> list[dict[str, object]]:
    return [event for event in job.events("failure_detected") if event["kind"] == "stall"]


def test_silent_rank_is_found_by_the_rhythm_of_the_job_and_its_line_is_in_the_incident(
    ftlaunch: Launcher, tmp_path: Path
) -> None:
    body = """
def spin():
    while True: pass
steps(0, 60)
if GEN == 0 and RANK == 1: spin()
if GEN == 0: threading.Event().wait()
"""
    job = ftlaunch(*STALL, write(tmp_path, body))
    assert job.wait() == 0
    (stall,) = stalls(job)
    assert "learnt" in str(stall["reason"])
    (incident,) = job.incidents()
    evidence = "\n".join(incident["cause"]["evidence"])
    assert "in spin" in evidence and "suspect" in evidence, evidence


def test_F3_beats_of_another_thread_do_not_keep_a_stuck_loop_alive(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
steps(0, 60)
if GEN == 0 and RANK == 1:
    def tick():
        while True: time.sleep(0.01); hb.beat(99)
    threading.Thread(target=tick, daemon=True).start()
    threading.Event().wait()
if GEN == 0: threading.Event().wait()
"""
    job = ftlaunch(*STALL, write(tmp_path, body))
    assert job.wait() == 0
    assert len(stalls(job)) == 1


def test_F4_stopped_rank_is_dealt_with_within_seconds(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "steps(0, 30)\nif GEN == 0 and RANK == 1: os.kill(os.getpid(), signal.SIGSTOP)\nif GEN == 0: signal.pause()"
    job = ftlaunch("--nproc-per-node", "2", "--max-restarts", "1", write(tmp_path, body))
    assert job.wait(30) == 0
    (stall,) = stalls(job)
    assert "stopped" in str(stall["reason"]) and stall["rank"] == 1


def test_stopped_and_continued_rank_is_left_alone_when_asked_to(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "steps(0, 30)\nsay('ready')\nsys.stdin.readline()\nsteps(30, 400)"
    job = ftlaunch("--ignore-stopped", write(tmp_path, body))
    job.wait_for_output("ready")
    pid = job.events("workers_started")[0]["pids"][0]
    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    wait_until(lambda: job.events("stopped"), 20, "the agent has noticed")
    subprocess.run(["kill", "-CONT", str(pid)], check=True)
    assert job.wait(30) == 0 and not stalls(job)


def test_F4_rank_under_a_debugger_is_never_killed_for_its_silence(ftlaunch: Launcher, tmp_path: Path) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("gdb is missing")
    job = ftlaunch(
        "--hang-floor", "1", "--max-restarts", "0", write(tmp_path, "steps(0, 60)\nsay('ready')\nsteps(60, 700)")
    )
    job.wait_for_output("ready")
    pid = job.events("workers_started")[0]["pids"][0]
    gdb = subprocess.Popen(
        ["gdb", "-q", "-nx", "-p", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert gdb.stdin is not None
    wait_until(lambda: job.events("traced"), 30, "the agent has noticed the debugger")
    # Several limits long: the notice comes with the first look, a stall would come with a later one.
    wait_until(lambda: _age(job, "traced") > 4.0, 20)
    gdb.stdin.write(b"detach\nquit\n")
    gdb.communicate()
    assert job.wait(60) == 0 and not stalls(job)


def _age(job: Job, name: str) -> float:
    return time.monotonic() - float(job.events(name)[0]["monotonic"])


@pytest.mark.parametrize("where", ["checkpoint", "eval", "my own"])
def test_F1_no_alarm_in_a_section_many_times_longer_than_a_step(ftlaunch: Launcher, tmp_path: Path, where: str) -> None:
    body = f"""
steps(0, 60)
if RANK == 0:
    with hb.section({where!r}): time.sleep(3)
    open(sys.argv[1], "w").close()
else:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
steps(60, 80)
"""
    job = ftlaunch(*STALL, "--section-timeout", "my own=20", write(tmp_path, body), tmp_path / "flag")
    assert job.wait() == 0 and not job.events("failure_detected"), job.err


def test_F1_the_same_silence_outside_of_a_section_is_a_stall(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(*STALL, write(tmp_path, "steps(0, 60)\nif GEN == 0: threading.Event().wait(30)\nsteps(60, 70)"))
    assert job.wait() == 0 and len(stalls(job)) == 1


def test_no_alarm_for_a_first_step_thirty_times_longer(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(*STALL, write(tmp_path, "time.sleep(2.5)\nsteps(0, 60)\n"))
    assert job.wait() == 0 and not job.events("failure_detected")


def test_outer_section_keeps_its_limit_whatever_happens_inside(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
steps(0, 30)
if GEN == 0:
    with hb.section("outer"):
        for _ in range(2000):
            with hb.section("inner"): time.sleep(0.01)
"""
    options = ("--section-timeout", "outer=2", "--section-timeout", "inner=60", "--max-restarts", "1")
    job = ftlaunch(*options, write(tmp_path, body))
    assert job.wait() == 0
    (stall,) = stalls(job)
    assert "outer" in str(stall["reason"])


def test_F2_section_of_a_dead_generation_is_gone_with_it(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
steps(0, 30)
if GEN == 0:
    section = hb.section("mine")
    section.__enter__()
    if RANK == 1: os.kill(os.getpid(), 9)
    signal.pause()
steps(30, 400)
"""
    job = ftlaunch(*STALL, "--section-timeout", "mine=1", write(tmp_path, body))
    assert job.wait() == 0 and not stalls(job) and len(job.events("failure_detected")) == 1


def test_no_alarm_when_the_agent_itself_was_stopped(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch("--hang-floor", "1", write(tmp_path, "steps(0, 60)\nsay('ready')\nsteps(60, 500)\n"))
    job.wait_for_output("ready")
    job.signal(signal.SIGSTOP)
    rank = job.events("workers_started")[0]["pids"][0]
    started = _ticks(rank)
    wait_until(lambda: _ticks(rank) > started + 1 or not Path(f"/proc/{rank}").exists(), 10)
    subprocess.run(["sleep", "3"], check=True)
    job.signal(signal.SIGCONT)
    assert job.wait() == 0 and not job.events("failure_detected")


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def test_script_that_never_beats_is_not_watched(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch("--init-timeout", "1", "--hang-timeout", "1", "--hang-floor", "1", write(tmp_path, "time.sleep(4)"))
    assert job.wait() == 0 and not job.events("failure_detected")


def test_rank_that_never_makes_the_first_step_it_promised(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "hb.init()\nwith hb.section('init'): pass\nif GEN == 0: threading.Event().wait()\nsteps(0, 10)"
    job = ftlaunch("--init-timeout", "2", "--max-restarts", "1", write(tmp_path, body))
    assert job.wait() == 0 and len(stalls(job)) == 1


def test_rank_that_stays_when_the_others_have_left(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "steps(0, 30)\nif GEN == 0 and RANK == 1: threading.Event().wait()"
    job = ftlaunch(*STALL, "--exit-barrier-timeout", "2", "--hang-floor", "100", write(tmp_path, body))
    assert job.wait() == 0
    (stall,) = stalls(job)
    assert stall["rank"] == 1 and "--exit-barrier-timeout" in str(stall["reason"])


def test_script_asks_for_a_restart_and_for_the_end(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = (
        "steps(0, 10)\nif RANK == 0: (hb.request_restart if GEN == 0 else hb.request_stop)('because')\nsignal.pause()"
    )
    job = ftlaunch("--nproc-per-node", "2", write(tmp_path, body))
    assert job.wait() == 76
    assert len(job.events("workers_started")) == 2 and "because" in job.err


def test_progress_decides_how_long_to_go_on(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "steps(10 * GEN, 10 * GEN + 10)\nif GEN < 5: os._exit(3)"
    assert ftlaunch(write(tmp_path, body)).wait() == 0
    job = ftlaunch(write(tmp_path, "steps(0, 10)\nos._exit(3 + GEN)"))
    assert job.wait() == 76
    assert len(job.events("workers_started")) == 4


def test_the_same_exception_at_the_same_step_ends_the_job(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(write(tmp_path, "steps(0, 10)\nraise ValueError('poisoned sample')"))
    assert job.wait() == 76
    assert len(job.events("workers_started")) == 2 and "ValueError" in job.err


def test_beats_of_a_program_below_a_wrapper_count(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = write(tmp_path, "steps(0, 60)\nif GEN == 0: threading.Event().wait()")
    wrapper = tmp_path / "wrap.sh"
    wrapper.write_text(f'#!/bin/sh\n"{shutil.which("python3")}" "$@"\n')
    import sys

    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    job = ftlaunch("--no-python", "--hang-floor", "1", "--max-restarts", "1", wrapper, script)
    assert job.wait() == 0 and len(stalls(job)) == 1


SAVING = """
for step in range(10**6):
    time.sleep(0.01)
    hb.beat(step)
    if step == 5: say("ready")
    if hb.should_save():
        open(sys.argv[1] + str(RANK), "w").write(str(step))
        hb.checkpoint_saved(step, sys.argv[1])
        sys.exit(0)
"""


@pytest.mark.parametrize(
    ("options", "signum", "code"),
    [
        (("--preempt-signal", "SIGUSR1"), signal.SIGUSR1, 128 + signal.SIGUSR1),
        (("--preempt-signal", "SIGTERM,SIGUSR2"), signal.SIGTERM, 143),
        ((), signal.SIGTERM, 0),
    ],
)
def test_ranks_that_poll_are_not_signalled_but_save_and_leave(
    ftlaunch: Launcher, tmp_path: Path, options: tuple[str, ...], signum: int, code: int
) -> None:
    job = ftlaunch("--nproc-per-node", "2", *options, write(tmp_path, SAVING), tmp_path / "saved")
    wait_until(lambda: job.out.count("ready") == 2, 30)
    job.signal(signum)
    assert job.wait(30) == code
    assert (tmp_path / "saved0").exists() and (tmp_path / "saved1").exists()
    assert len(job.events("workers_started")) == 1


def test_preempted_rank_with_a_handler_of_its_own_gets_that_signal(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGUSR1, lambda *a: sys.exit(0))\nsay('ready')\nwhile True: time.sleep(1)"
    job = ftlaunch("--preempt-signal", "SIGUSR1", write(tmp_path, body))
    job.wait_for_output("ready")
    job.signal(signal.SIGUSR1)
    assert job.wait(30) == 128 + signal.SIGUSR1
