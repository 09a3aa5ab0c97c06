"""A generation dies and the next one begins, with nothing of the old one left. Real processes, no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import procfs
from support.jobs import Job, Launcher
from support.needs import need_pid_namespace
from support.scripts import write
from support.waiting import wait_until

TWO = ("--nproc-per-node", "2", "--max-restarts", "2")


LEAVE_BEHIND = {
    "child": "subprocess.Popen(['sleep', '600'])",
    "setsid": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "double fork": "subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & exit 0'])",
}
LOOK = """
marker = next(v for k, v in os.environ.items() if k == "FTLAUNCH_MARK").encode()
def others():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"FTLAUNCH_MARK=" + marker in open(f"/proc/{pid}/environ", "rb").read().split(b"\\0"):
                name = open(f"/proc/{pid}/comm").read().strip()
                if name == "sleep": found.append(pid)
        except OSError: pass
    return found
"""


@pytest.mark.parametrize("what", LEAVE_BEHIND.values(), ids=LEAVE_BEHIND)
def test_A1_A2_nothing_of_a_killed_rank_is_left_when_the_next_generation_starts(
    ftlaunch: Launcher, tmp_path: Path, what: str
) -> None:
    body = (
        LOOK
        + f"""
if GEN > 0: say("left over", others())
if GEN == 0:
    {what}
    while not others(): time.sleep(0.01)
    say("there True")
    if RANK == 1: os.kill(os.getpid(), 9)
    signal.pause()
"""
    )
    job = ftlaunch(*TWO, write(tmp_path, body))
    assert job.wait() == 0
    assert "there True" in job.out
    assert [line for line in job.out.splitlines() if "left over" in line and not line.endswith("[]")] == []


@pytest.mark.parametrize("what", LEAVE_BEHIND.values(), ids=LEAVE_BEHIND)
def test_A3_nothing_outlives_a_killed_agent(ftlaunch: Launcher, tmp_path: Path, what: str) -> None:
    body = f"{what}\nsay('ready')\nsignal.pause()"
    job = ftlaunch(*TWO, write(tmp_path, body))
    wait_until(lambda: job.out.count("ready") == 2, 30)
    assert len(job.processes()) >= 5
    job.signal(signal.SIGKILL)
    job.wait()
    wait_until(lambda: not job.processes(), 5, "everything is gone")


def test_A3_a_rank_that_closed_all_its_descriptors_still_dies_with_its_agent(
    ftlaunch: Launcher, tmp_path: Path
) -> None:
    job = ftlaunch(*TWO, write(tmp_path, "say('ready')\nos.closerange(3, 4096)\nsignal.pause()"))
    wait_until(lambda: job.out.count("ready") == 2, 30)
    job.signal(signal.SIGKILL)
    wait_until(lambda: not job.processes(), 5, "everything is gone")


def place_of_sockets(job: Job) -> Path:
    assert job.run_dir is not None
    return Path(json.loads((job.run_dir / "run.json").read_text())["control"]).parent


def test_the_next_job_removes_the_sockets_of_an_agent_that_was_killed_with_its_guardian(
    ftlaunch: Launcher, tmp_path: Path
) -> None:
    waits = "say('ready')\nwhile os.path.exists(sys.argv[1]): time.sleep(0.01)"
    shared = tmp_path / "run"
    shared.mkdir(mode=0o700)
    # Where a socket's path is too long they lie elsewhere.
    runtime = {"XDG_RUNTIME_DIR": str(shared), "TMPDIR": "/tmp"}
    killed, running = (ftlaunch("--standby", "off", write(tmp_path, waits), tmp_path, env=runtime) for _ in range(2))
    for job in (killed, running):
        job.wait_for_output("ready")
    guardian = next(pid for pid in procfs.children(killed.pid) if "guardian" in procfs.describe(pid))
    os.kill(guardian, signal.SIGSTOP)
    killed.signal(signal.SIGKILL)
    killed.wait()
    os.kill(guardian, signal.SIGKILL)
    wait_until(lambda: not killed.processes() and not procfs.alive(guardian), 10)
    left = place_of_sockets(killed)
    assert left.is_dir()
    later = ftlaunch("--standby", "off", write(tmp_path, waits), left, env=runtime)
    assert later.wait() == 0
    assert not left.exists() and (place_of_sockets(running) / "beats").is_socket()


def test_A7_survivors_are_stopped_at_once(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(*TWO, write(tmp_path, "if GEN < 1:\n    if RANK: sys.exit(3)\n    while True: time.sleep(1)"))
    assert job.wait(20) == 0
    detected, stopped = job.events("failure_detected")[0], job.events("workers_stopped")[0]
    assert stopped["monotonic"] - detected["monotonic"] < 1.5, "no grace was to be waited for"


STUBBORN = {
    "stopped": "if RANK == 0 and GEN == 0: say('ready'); os.kill(os.getpid(), signal.SIGSTOP)",
    "ignores SIGTERM": "signal.signal(15, signal.SIG_IGN)\nif RANK == 0 and GEN == 0: say('ready'); signal.pause()",
    "handles SIGTERM and goes on": """
signal.signal(15, lambda *a: None)
if RANK == 0 and GEN == 0:
    say("ready")
    while True: time.sleep(1)
""",
}


@pytest.mark.parametrize("how", STUBBORN.values(), ids=STUBBORN)
def test_stubborn_survivor_costs_at_most_the_grace(ftlaunch: Launcher, tmp_path: Path, how: str) -> None:
    body = how + "\nif RANK == 1 and GEN == 0:\n    sys.stdin.read()\n    os.kill(os.getpid(), 9)"
    job = ftlaunch(*TWO, "--kill-grace", "1", write(tmp_path, body))
    assert job.wait(20) == 0
    detected, stopped = job.events("failure_detected")[0], job.events("workers_stopped")[0]
    assert stopped["monotonic"] - detected["monotonic"] < 4.0


def test_R4_every_generation_has_a_port_of_its_own(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
say("port", os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_RESTART_COUNT"])
if GEN < 2 and RANK: os._exit(1)
if GEN < 2: signal.pause()
"""
    job = ftlaunch(*TWO, write(tmp_path, body))
    assert job.wait() == 0
    seen = {tuple(line.split()[1:]) for line in job.out.splitlines() if "port" in line}
    assert len({port for port, _ in seen}) == 3 and {count for _, count in seen} == {"0", "1", "2"}


def test_budget_is_a_total_and_then_the_own_code_counts(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(*TWO, write(tmp_path, "if RANK: sys.exit(9)\nsignal.pause()"))
    assert job.wait() == 9
    assert len(job.events("workers_started")) == 3


def test_A5_as_pid_1_orphans_are_reaped_and_sigterm_ends_the_job(tmp_path: Path) -> None:
    body = """
subprocess.run(["sh", "-c", "(setsid sleep 0.1 &) ; exit 0"])
def zombies():
    states = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: states.append(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0])
        except OSError: pass
    return states.count("Z")
def sleeps():
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: found += open(f"/proc/{pid}/comm").read().strip() == "sleep"
        except OSError: pass
    return found
while sleeps() or zombies(): time.sleep(0.01)
say("agent is", os.getppid(), "zombies", zombies())
signal.pause()
"""
    argv = [*need_pid_namespace(), sys.executable, "-m", "ftlaunch.launcher", str(write(tmp_path, body))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline().split(b":", 1)[1].split()[:3] == [b"agent", b"is", b"1"]
        (agent,) = procfs.children(outer.pid)
        os.kill(agent, signal.SIGTERM)
        assert outer.wait(20) == 143
        outer.communicate()


def test_R6_five_jobs_at_once_do_not_disturb_each_other(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
import socket
port = int(os.environ["MASTER_PORT"])
if RANK == 0:
    server = socket.create_server(("", port)); say("world", os.environ["WORLD_SIZE"])
    server.accept()[0].sendall(os.environ["TORCHELASTIC_RUN_ID"].encode()[:8])
else:
    while True:
        try: peer = socket.create_connection(("localhost", port)); break
        except ConnectionRefusedError: time.sleep(0.01)
    assert os.environ["TORCHELASTIC_RUN_ID"].encode()[:8] == peer.recv(8)
if GEN == 0 and RANK: os._exit(1)
"""
    script = write(tmp_path, body)
    jobs: list[Job] = [ftlaunch("--standalone", *TWO, script) for _ in range(5)]
    assert [job.wait(90) for job in jobs] == [0] * 5
    assert all(job.out.count("world 2") == 2 for job in jobs)


def test_unprivileged_user_with_an_unwritable_home(ftlaunch: Launcher, tmp_path: Path, unprivileged: object) -> None:
    script = write(unprivileged.home, "if GEN == 0 and RANK: os.kill(os.getpid(), 9)\nif GEN == 0: signal.pause()")  # type: ignore[attr-defined]
    script.chmod(0o644)
    environment = {"HOME": "/proc", "XDG_STATE_HOME": None, "XDG_RUNTIME_DIR": None}
    job = ftlaunch(*TWO, script, user=unprivileged, env=environment)  # type: ignore[arg-type]
    assert job.wait() == 0, job.err
    assert "Traceback" not in job.err


def test_training_repo_with_its_own_launcher_and_heartbeat(ftlaunch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text("NAME = 'mine'")
    (tmp_path / "heartbeat.py").write_text("NAME = 'mine too'")
    (tmp_path / "rendezvous.py").write_text("NAME = 'and mine'")
    body = """
import heartbeat, launcher, rendezvous
say(launcher.NAME, heartbeat.NAME, rendezvous.NAME)
import ftlaunch.heartbeat as hb
hb.beat(1)
"""
    script = write(tmp_path, body)
    for env in ({}, {"PYTHONPATH": str(tmp_path)}):
        job = ftlaunch(script, env=env, cwd=tmp_path)
        assert job.wait() == 0, job.err
        assert "mine mine too and mine" in job.out


def test_interrupted_while_being_stopped_the_job_still_ends_clean(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = """
signal.signal(15, lambda *a: say("asked"))
say("ready")
if RANK:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    os._exit(1)
while True: time.sleep(1)
"""
    flag = tmp_path / "flag"
    job = ftlaunch(*TWO, "--kill-grace", "600", write(tmp_path, body), flag)
    wait_until(lambda: job.out.count("ready") == 2, 30)
    flag.touch()
    job.wait_for_output("asked")
    job.signal(signal.SIGTERM)
    job.signal(signal.SIGINT)
    job.signal(signal.SIGINT)
    assert job.wait(20) == 143
    assert len(job.events("workers_started")) == 1


def test_the_same_exception_at_the_failed_ranks_own_step_ends_the_job_though_others_run_ahead(
    ftlaunch: Launcher, tmp_path: Path
) -> None:
    body = f"""
import pathlib, threading
from ftlaunch import heartbeat
ahead, pause = pathlib.Path({str(tmp_path)!r}, f"ahead{{GEN}}"), threading.Event()
if RANK == 0:
    for step in range(51 + 1000 * GEN, 1000 * (GEN + 1)):
        heartbeat.beat(step)
        pause.wait(0.01)
        if step % 1000 == 200: ahead.touch()
heartbeat.beat(50)
while not ahead.exists(): pause.wait(0.01)
raise ValueError("bad data")
"""
    job = ftlaunch("--nproc-per-node", "2", write(tmp_path, body))
    assert job.wait(60) == 76
    assert [(event["rank"], event["step"]) for event in job.events("failure_detected")] == [(1, 50), (1, 50)]
    reached = [max(e["step"] or 0 for e in job.events("progress") if e["generation"] == n) for n in (0, 1)]
    assert 50 < reached[0] < 1000 < reached[1], "the others do"
    assert "the same ValueError" in job.err and "at step 50 ended generations 0 and 1" in job.err
