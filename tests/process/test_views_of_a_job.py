"""A real job seen from outside: its metrics and health over loopback, its last line, its report."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ftlaunch.launcher.ftctl import __main__ as ftctl
from support import procfs
from support.jobs import Job, Launcher
from support.waiting import wait_until

SCRIPT = """
import os, pathlib, sys, threading
from ftlaunch import heartbeat
generation, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
go, pause = pathlib.Path(sys.argv[1]), threading.Event()
for step in range(1 + 20 * min(generation, 1), 61):
    pause.wait(0.005)
    heartbeat.beat(step)
    if generation == 0 and step == 30 and rank == 1:
        os.kill(os.getpid(), 9)
    while generation == 0 and step == 30:
        pause.wait(0.005)
        heartbeat.beat(step)
    if step == 40:
        while not go.exists():
            pause.wait(0.005)
            heartbeat.beat(step)
"""


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def address_of(job: Job, what: str) -> str:
    job.wait_for_output(f"{what} at http://127.0.0.1:")
    found = re.search(rf"{what} at (http://127\.0\.0\.1:\d+)", job.err)
    assert found is not None
    return found[1]


def test_a_job_with_a_fault(ftlaunch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(SCRIPT)
    options = ("--nproc-per-node", "2", "--standby", "off", "--metrics-port", "0", "--health-port", "0")
    job = ftlaunch(*options, script, go)
    metrics, health = address_of(job, "metrics"), address_of(job, "health")
    wait_until(lambda: "\nftlaunch_step 40.0\n" in get(f"{metrics}/metrics")[1], 30, "step 40 in the metrics")
    status, text = get(f"{metrics}/metrics")
    assert status == 200
    assert '\nftlaunch_restarts_total{cause="SIGKILL"} 1.0\n' in text
    assert re.search(r'\nftlaunch_phase_seconds_count\{phase="workers_stopped"\} 1\.0\n', text)
    # The step is the farthest of both ranks; the other one may not have begun yet.
    ages = re.compile(r'\nftlaunch_beat_age_seconds\{rank="[01]"\} ')
    wait_until(lambda: len(ages.findall(get(f"{metrics}/metrics")[1])) == 2, 30, "the ages of both ranks")
    assert get(f"{health}/healthz") == (200, "ok\n")
    status, answer = get(f"{health}/readyz")
    assert (status, json.loads(answer)["ready"], json.loads(answer)["step"]) == (200, True, 40)
    assert get(f"{health}/metrics")[0] == 404
    go.touch()
    assert job.wait() == 0
    line = next(line for line in job.err.splitlines() if line.startswith("[ftlaunch] ran "))
    assert "60 steps, 1 restart (SIGKILL), goodput " in line
    assert line.endswith("s lost")

    assert ftctl.run(["report", "--json", str(job.run_dir)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["restarts"], told["finished"], told["exit_code"]) == (60, 1, True, 0)
    # Rank 1 told step 30 at the latest, and generation 1 begins with step 21.
    assert 8 <= told["steps_repeated"] <= 20
    (incident,) = told["incidents"]
    assert (incident["cause"], incident["rank"]) == ("SIGKILL", 1)
    assert incident["recovery_s"] == pytest.approx(sum(incident["phases_s"].values()), abs=1e-4)
    assert 0 < told["training_goodput"] < told["infrastructure_goodput"] < 1


VICTIM_FIRST = """
import os, pathlib, sys, threading
from ftlaunch import heartbeat
go, pause = pathlib.Path(sys.argv[1]), threading.Event()
heartbeat.beat(1)
while not go.exists():
    pause.wait(0.01)
if os.environ["FTLAUNCH_GENERATION"] == "0":
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), 9)
    raise RuntimeError("Connection closed by peer")
heartbeat.beat(2)
"""


def test_the_last_line_tells_the_corrected_cause_when_a_victim_was_heard_first(
    ftlaunch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(VICTIM_FIRST)
    job = ftlaunch("--nproc-per-node", "2", "--standby", "off", script, go)
    wait_until(lambda: job.events("training_resumed"), 30, "the first beat")
    (started,) = job.events("workers_started")
    # Both have failed before the agent can look, which listens to what was said before it counts the dead.
    job.signal(signal.SIGSTOP)
    try:
        go.touch()
        wait_until(lambda: not any(map(procfs.alive, started["pids"])), 30, "both ranks dead")
    finally:
        job.signal(signal.SIGCONT)
    assert job.wait() == 0
    assert [event["rank"] for event in job.events("failure_detected")] == [0]
    assert [event["rank"] for event in job.events("cause_corrected")] == [1]
    line = next(line for line in job.err.splitlines() if line.startswith("[ftlaunch] ran "))
    assert "1 restart (SIGKILL)" in line
    assert ftctl.run(["report", "--json", str(job.run_dir)]) == 0
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert (incident["cause"], incident["rank"]) == ("SIGKILL", 1)


def test_a_short_job_that_went_well_says_nothing(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')")
    job = ftlaunch("--standby", "off", script)
    assert job.wait() == 0
    assert job.err == ""
    job = ftlaunch("--standby", "off", "--log-level", "INFO", script)
    assert job.wait() == 0
    assert re.search(r"^\[ftlaunch\] ran [\d.]+ m?s, no restart, goodput not known: no beat was heard$", job.err, re.M)


def test_events_are_shown_on_stderr_when_the_console_handles_them(
    ftlaunch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')")
    quiet = ftlaunch("--standby", "off", "--event-log-handler", "null", script)
    job = ftlaunch("--standby", "off", "--event-log-handler", "console", script)
    assert (quiet.wait(), job.wait()) == (0, 0)
    assert ftctl.run(["events", str(job.run_dir)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert job.err.splitlines() == [f"[ftlaunch] {line}" for line in shown]
    assert len(shown) == len(job.events()) and any(" job_finished " in line for line in shown)
    assert quiet.err == ""


def test_a_port_that_cannot_be_had_costs_a_line_and_not_the_job(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')")
    job = ftlaunch("--standby", "off", "--metrics-port", "0", "--metrics-address", "192.0.2.1", script)
    assert job.wait() == 0
    assert "[ftlaunch] no metrics: cannot listen on 192.0.2.1:0: " in job.err and "done" in job.out


def test_two_servers_on_one_port_are_refused_before_anything_runs(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('done')")
    job = ftlaunch("--metrics-port", "9", "--health-port", "9", script)
    assert job.wait() == 2
    assert "--metrics-port and --health-port are both 9" in job.err and job.out == ""
