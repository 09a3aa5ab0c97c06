"""``ftctl`` against a real running job, as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from support import procfs
from support.ftctl import Ctl
from support.jobs import Job, Launcher
from support.users import Unprivileged
from support.waiting import wait_until

SCRIPT = """
import os, sys, threading
from ftlaunch.heartbeat import beat, section

def hold():
    print("ready", os.environ["RANK"], flush=True)
    for step in range(1, 100000):
        beat(step=step, total=100000)
        never.wait(0.01)

never = threading.Event()
print("to stderr", os.environ["RANK"], file=sys.stderr, flush=True)
hold()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def job(ftlaunch: Launcher, script: Path) -> Job:
    """Two ranks at work."""
    started = ftlaunch("--nproc-per-node", "2", "--standby", "off", script)
    started.wait_for_output("ready 0")
    started.wait_for_output("ready 1")
    return started


def test_status_of_a_job_at_work(job: Job) -> None:
    ctl = Ctl(job)
    wait_until(lambda: all(rank["beaten"] for rank in ctl.status()["ranks"]))
    status = ctl.status()
    assert (status["generation"], status["phase"], status["world_size"]) == (0, "running", 2)
    for number, rank in enumerate(status["ranks"]):
        assert rank["rank"] == number and rank["state"] == "running"
        assert procfs.alive(rank["pid"]) and rank["pid"] in procfs.children(job.pid)
        assert rank["step"] >= 1 and rank["total"] == 100000 and rank["memory_bytes"] > 1 << 20
        assert 0 <= rank["silence_s"] < rank["limit_s"]
    assert status["progress"]["step"] >= 1 and status["nodes"][0]["agent_pid"] == job.pid
    text = ctl("status", "--run", ctl.run)
    assert "\x1b" not in text, "no colours into a pipe"
    rows = [line.split() for line in text.splitlines()]
    assert any(row[:1] == ["0"] and row[2] == "running" for row in rows)
    assert "of 100,000" in text and "limit of step: " in text


def test_the_latest_running_job_is_the_default(job: Job) -> None:
    ctl = Ctl(job)
    assert json.loads(ctl("status", "--json"))["nodes"][0]["agent_pid"] == job.pid
    name = Path(ctl.run).name
    assert json.loads(ctl("status", "--json", "--run", name[:-3]))["run"] == ctl.run


def test_a_stopped_rank_shows_as_stopped(job: Job) -> None:
    ctl = Ctl(job)
    pid = ctl.status()["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert ctl.status()["ranks"][1]["state"] == "stopped"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_dump_shows_where_the_ranks_are_and_hurts_nobody(job: Job) -> None:
    ctl = Ctl(job)
    before = [rank["pid"] for rank in ctl.status()["ranks"]]
    text = ctl("dump", "--run", ctl.run)
    assert 'train.py", line ' in text and "in hold" in text
    assert "rank" in text.splitlines()[0] and "most recent call last" in text
    threads = ctl("dump", "--run", ctl.run, "--threads", "--rank", "1")
    assert "rank 1 (pid " in threads and "rank 0" not in threads
    shape = json.loads(ctl("dump", "--run", ctl.run, "--json"))
    assert [rank["rank"] for rank in shape["ranks"]] == [0, 1]
    assert all(any("hold" in frame for frame in rank["threads"][-1]) for rank in shape["ranks"])
    assert "there is no rank 7 alive" in ctl("dump", "--run", ctl.run, "--rank", "7", code=1)
    steps = [rank["step"] for rank in ctl.status()["ranks"]]
    wait_until(lambda: all(now["step"] > then for now, then in zip(ctl.status()["ranks"], steps, strict=True)))
    assert [rank["pid"] for rank in ctl.status()["ranks"]] == before
    assert not job.events("failure_detected")


def test_a_rank_that_cannot_answer_is_told_and_not_signalled(ftlaunch: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\necho ready\nexec tail -f /dev/null\n")
    program.chmod(0o755)
    job = ftlaunch("--no-python", program)
    job.wait_for_output("ready")
    ctl = Ctl(job)
    wait_until(lambda: "tail" in procfs.describe(ctl.status()["ranks"][0]["pid"]))
    text = ctl("dump", "--run", ctl.run)
    assert "rank 0 (pid " in text and "has no Python stack to show: state S" in text
    assert ctl.status()["ranks"][0]["state"] in ("running", "starting")


def test_restart_begins_the_next_generation(job: Job) -> None:
    ctl = Ctl(job)
    wait_until(lambda: ctl.status()["progress"])
    pids = [rank["pid"] for rank in ctl.status()["ranks"]]
    assert "generation 0 is being restarted" in ctl("restart", "--run", ctl.run, "--reason", "new data")
    wait_until(lambda: len(job.events("workers_started")) == 2, 20)
    status = wait_until(lambda: ctl.status() if ctl.status()["phase"] == "running" else None)
    assert status is not None and status["generation"] == 1 and status["restarts"] == 1
    assert not {rank["pid"] for rank in status["ranks"]} & set(pids)
    assert "new data" in status["last_cause"]["reason"]
    (incident,) = job.incidents()
    assert incident["cause"]["kind"] == "request" and "new data" in incident["cause"]["reason"]
    assert "new data" in ctl("explain", ctl.run)


def test_restart_that_would_end_the_job_is_refused(ftlaunch: Launcher, tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("import threading\nprint('ready', flush=True)\nthreading.Event().wait()\n")
    job = ftlaunch("--standby", "off", "--max-restarts", "0", silent)
    job.wait_for_output("ready")
    ctl = Ctl(job)
    message = ctl("restart", "--run", ctl.run, code=1)
    assert "would end the job" in message and "--max-restarts 0" in message and "ftctl stop" in message
    status = ctl.status()
    assert status["phase"] == "running" and status["generation"] == 0 and procfs.alive(status["ranks"][0]["pid"])


def test_stop_ends_the_job_as_sigterm_would(job: Job) -> None:
    ctl = Ctl(job)
    run = ctl.run
    assert "stopping" in ctl("stop", "--run", run, "--reason", "enough")
    assert job.wait(20) == 143
    assert "stopped with ftctl: enough" in job.err
    assert "has ended with code 143" in ctl("status", "--run", run, code=1)
    assert "has ended with code 143" in ctl("stop", "--run", run, code=1)
    assert "with code 143: stopped with ftctl: enough" in ctl("explain", run)


def test_acting_asks_which_of_two_jobs_is_meant(job: Job, ftlaunch: Launcher, script: Path) -> None:
    ctl = Ctl(job)
    second = ftlaunch("--standby", "off", script, env={"XDG_STATE_HOME": str(job.home / "state")})
    second.wait_for_output("ready 0")
    assert "2 jobs are running" in ctl("stop", code=1)
    assert "2 jobs are running" in ctl("restart", code=1)
    assert json.loads(ctl("status", "--json"))["nodes"][0]["agent_pid"] == second.pid


def test_exclude_is_refused_on_one_node(job: Job) -> None:
    assert "runs on one node" in Ctl(job)("exclude", "node-b", "--run", Ctl(job).run, code=1)


def test_logs_of_all_ranks_of_one_and_of_a_generation(job: Job) -> None:
    ctl = Ctl(job)
    lines = ctl("logs", ctl.run).splitlines()
    assert lines == ["[0 out] ready 0", "[0 err] to stderr 0", "[1 out] ready 1", "[1 err] to stderr 1"]
    assert ctl("logs", ctl.run, "--rank", "1", "--out") == "ready 1\n"
    assert ctl("logs", ctl.run, "--err").splitlines() == ["[0 err] to stderr 0", "[1 err] to stderr 1"]
    assert ctl("logs", ctl.run, "--generation", "0", "--rank", "0", "--err", "--tail", "1") == "to stderr 0\n"
    assert "no generation 4; the last one is 0" in ctl("logs", ctl.run, "--generation", "4", code=1)
    assert "no log of rank 9" in ctl("logs", ctl.run, "--rank", "9", code=1)


def test_logs_are_followed_into_the_next_generation_until_the_end(job: Job, tmp_path: Path) -> None:
    ctl = Ctl(job)
    wait_until(lambda: ctl.status()["progress"])
    with open(tmp_path / "followed", "wb") as out:
        follower = ctl.start("logs", "-f", ctl.run, "--out", stdout=out)
    followed = tmp_path / "followed"
    wait_until(lambda: "[1 out] ready 1" in followed.read_text())
    ctl("restart", "--run", ctl.run)
    wait_until(lambda: followed.read_text().count("[1 out] ready 1") == 2, 20)
    ctl("stop", "--run", ctl.run)
    job.wait(20)
    assert follower.wait(10) == 0
    assert sorted(followed.read_text().splitlines()) == 2 * ["[0 out] ready 0"] + 2 * ["[1 out] ready 1"]


def test_logs_in_torchruns_layout(ftlaunch: Launcher, script: Path, tmp_path: Path) -> None:
    job = ftlaunch("--standby", "off", "--log-dir", tmp_path / "logs", "--redirects", "3", script)
    ctl = Ctl(job)
    wait_until(lambda: list((tmp_path / "logs").rglob("stdout.log")))
    wait_until(lambda: "ready 0" in ctl("logs", ctl.run, "--out"))


def test_control_socket_is_private_and_gone_in_the_end(job: Job) -> None:
    facts = json.loads((Path(Ctl(job).run) / "run.json").read_text())
    path = Path(facts["control"])
    assert stat.S_ISSOCK(path.stat().st_mode) and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and path.parent.stat().st_uid == os.getuid()
    assert len(os.fsencode(path)) <= 107
    job.signal(signal.SIGTERM)
    job.wait(20)
    assert not path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_another_user_gets_no_answer_even_through_an_open_door(job: Job, unprivileged: Unprivileged) -> None:
    facts = json.loads((Path(Ctl(job).run) / "run.json").read_text())
    path = Path(facts["control"])
    code = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as s:\n"
        '    s.settimeout(5); s.connect(sys.argv[1]); s.sendall(b\'{"command": "stop"}\\n\')\n'
        "    sys.exit(0 if s.recv(100) == b'' else 3)\n"
    )
    command = unprivileged.command(unprivileged.python, "-c", code, str(path))
    shut = subprocess.run(command, capture_output=True, timeout=20)
    assert b"PermissionError" in shut.stderr
    # Somebody opens all doors: the kernel still says who connects.
    for folder in (path, *path.parents):
        if str(folder) == os.environ["PYTEST_DEBUG_TEMPROOT"]:
            break
        folder.chmod(0o777)
    opened = subprocess.run(command, capture_output=True, timeout=20)
    assert opened.returncode in (0, 1) and b"PermissionError" not in opened.stderr, opened.stderr
    assert Ctl(job).status()["ending"] is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")
def test_a_job_of_an_unprivileged_user_answers_to_that_user(ftlaunch: Launcher, unprivileged: Unprivileged) -> None:
    path = unprivileged.home / "train.py"
    path.write_text(SCRIPT)
    job = ftlaunch("--standby", "off", path, user=unprivileged)
    job.wait_for_output("ready 0")
    assert job.run_dir is not None
    ctl = Ctl(job)
    argv = unprivileged.command(
        unprivileged.python, "-m", "ftlaunch.launcher.ftctl", "status", "--json", "--run", str(job.run_dir)
    )
    done = subprocess.run(
        argv, env={**ctl.environment, **unprivileged.environment}, capture_output=True, timeout=20, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"][0]["agent_pid"] > 0


def test_garbage_on_the_socket_does_no_harm(job: Job) -> None:
    import socket

    facts = json.loads((Path(Ctl(job).run) / "run.json").read_text())
    for data in (
        b"",
        b"\n",
        b"{",
        b"[1]\n",
        b'{"command": ["x"]}\n',
        b'{"command": "status", "x": [[[[1]]]]}\n',
        b"x" * 100000,
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(facts["control"])
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(100000)
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert Ctl(job).status()["phase"] == "running"
    job.signal(signal.SIGTERM)
    job.wait(20)
    assert "Traceback" not in job.err, job.err
