"""How a job ends: exit codes, the failure report, signals. Real command line, tiny scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import Launcher
from support.scripts import TWO, wait_for_ready, write
from support.waiting import wait_until


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


class Script:
    """Writes little training scripts, as :func:`support.scripts.write` does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, body: str, name: str = "train.py") -> Path:
        return write(self.folder, body, name)


def test_ranks_before_one_that_cannot_be_started_are_not_waited_for(
    ftlaunch: Launcher, script: Script, tmp_path: Path
) -> None:
    train = script("time.sleep(600)")
    # Too few descriptors for 20 ranks, enough for some; and that is so only once it was looked whether they suffice.
    limit = """
import resource, sys
def lower(event, arguments):
    if event == "socket.bind": resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sys.addaudithook(lower)
"""
    (tmp_path / "sitecustomize.py").write_text(limit)
    options = ("--nproc-per-node", "20", "--unkillable-timeout", "600")
    job = ftlaunch(*options, train, env={"PYTHONPATH": str(tmp_path)})
    assert job.wait(30) == 2
    assert "Too many open files" in job.err
    assert "could not be started: a restart cannot help" in job.err


def test_where_no_socket_can_be_made_nothing_is_started_and_one_line_tells_why(
    ftlaunch: Launcher, script: Script, tmp_path: Path
) -> None:
    refuse = """
import sys
def refuse(event, arguments):
    if event == "socket.bind": raise PermissionError(1, "Operation not permitted")
sys.addaudithook(refuse)
"""
    (tmp_path / "sitecustomize.py").write_text(refuse)
    environment = {"PYTHONPATH": str(tmp_path)}
    job = ftlaunch(script("print('started')"), env=environment)
    assert job.wait() == 2
    (line,) = job.err.splitlines()
    assert line.startswith("ftlaunch: no place for the heartbeat socket (") and "set TMPDIR" in line
    assert "abstract address: Operation not permitted" in line
    assert job.out == "" and job.events() == []
    (run,) = job.home.rglob("run.json")
    assert json.loads(run.read_text())["exit_code"] == 2
    command = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "check", "--json", script("")]
    check = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert check.returncode == 1, check.stderr
    (found,) = [each for each in json.loads(check.stdout)["findings"] if each["subject"] == "sockets"]
    assert found["level"] == "error" and "no place for the heartbeat socket" in found["text"]


def test_text_that_cannot_be_encoded_spoils_no_report(ftlaunch: Launcher, script: Script) -> None:
    body = 'sys.excepthook = lambda *said: sys.exit(7)\nraise ValueError("a\\ud800b")'
    job = ftlaunch("--max-restarts", "0", script(body))
    assert job.wait() == 7
    assert "exit code   : 7" in job.err
    assert job.run_dir is not None
    assert "a\\ud800b" in (job.run_dir / "failure.txt").read_text()
    page = subprocess.run(
        [sys.executable, "-m", "ftlaunch.launcher.ftctl", "report", str(job.run_dir)], capture_output=True, text=True
    )
    assert page.returncode == 0, page.stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit(1)", 1),
        ("sys.exit(7)", 7),
        ("sys.exit(75)", 75),
        ("sys.exit(300)", 44),
        ("os._exit(255)", 255),
        ("os.kill(os.getpid(), 6)", 134),
        ("os.kill(os.getpid(), 9)", 137),
        ("os.kill(os.getpid(), 11)", 139),
        ("os.kill(os.getpid(), 15)", 143),
        ("os.kill(os.getpid(), 39)", 167),
    ],
)
def test_job_ends_with_the_first_failed_ranks_own_code(ftlaunch: Launcher, script: Script, end: str, code: int) -> None:
    body = f"""
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if RANK == 1: {end}
elif {code}: signal.pause()
"""
    job = ftlaunch(*TWO, "--max-restarts", "0", script(body))
    assert job.wait() == code
    assert ("FAILED" in job.err) is (code != 0)
    if code > 128 and "kill" in end:
        assert "SIG" in job.err.split("Root Cause")[1].split("exitcode")[1].splitlines()[0]


def test_torchrun_exit_codes_on_request(ftlaunch: Launcher, script: Script) -> None:
    job = ftlaunch("--torchrun-exit-codes", "--max-restarts", "0", script("sys.exit(7)"))
    assert job.wait() == 1
    assert "exit code   : 1: as torchrun (--torchrun-exit-codes); the failed rank ended with 7" in job.err


def test_report_is_the_last_thing_and_names_the_first_failed_rank(ftlaunch: Launcher, script: Script) -> None:
    body = """
if RANK == 1:
    open(sys.argv[1], "w").close()
    while not os.path.exists(sys.argv[1] + "0"): time.sleep(0.01)
    raise ValueError("the real reason")
def noise(*a):
    for i in range(10000): print("noise", i, file=sys.stderr)
    sys.exit(3)
signal.signal(15, noise)
open(sys.argv[1] + "0", "w").close()
while True: time.sleep(1)
"""
    job = ftlaunch(*TWO, "--max-restarts", "0", script(body), script.folder / "flag")
    assert job.wait() == 1
    block = job.err[job.err.rindex("train.py FAILED") :]
    assert "rank      : 1" in block and "ValueError: the real reason" in block and "noise" not in block
    assert 'raise ValueError("the real reason")' in block and "bootstrap" not in block and "run_main" not in block
    assert "rank 0 (SIGTERM)" in block
    assert job.err.rstrip().endswith("=")


def test_success_says_nothing_of_its_own_but_what_the_user_should_know(ftlaunch: Launcher, script: Script) -> None:
    job = ftlaunch(*TWO, script("print('hello')"), env={"OMP_NUM_THREADS": "1"})
    assert job.wait() == 0
    assert job.err == ""
    assert sorted(job.out.splitlines()) == ["[default0]:hello", "[default1]:hello"]


def test_missing_script_is_one_line_before_anything_is_spawned(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch("--max-restarts", "9", tmp_path / "nope.py")
    assert job.wait() == 2
    assert len(job.err.splitlines()) == 1 and "nope.py" in job.err and "Traceback" not in job.err
    assert job.events() == []


@pytest.mark.parametrize("body", ["import missing_module_of_nobody", "def (:"])
def test_script_that_cannot_start_is_not_started_again(ftlaunch: Launcher, script: Script, body: str) -> None:
    job = ftlaunch("--max-restarts", "9", script(body))
    assert job.wait() == 1
    assert len(job.events("workers_started")) == 1
    assert "missing_module_of_nobody" in job.err or "SyntaxError" in job.err


HANDLER = """
def handler(number, frame):
    with open(sys.argv[1] + str(RANK), "a") as seen: seen.write(f"{number}\\n")
    if len(sys.argv) > 2: time.sleep(float(sys.argv[2]))
    os._exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
signal.signal(15, handler); signal.signal(2, handler)
print("ready", flush=True)
while True: time.sleep(1)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("own", "clean"), [("0", True), ("3", False)])
def test_signal_reaches_every_rank_once_and_decides_the_code(
    ftlaunch: Launcher, script: Script, signum: int, code: int, own: str, clean: bool
) -> None:
    job = ftlaunch(*TWO, script(HANDLER), script.folder / "seen", "0", own)
    wait_for_ready(job)
    job.signal(signum)
    assert job.wait() == (0 if clean else code)
    for rank in range(2):
        assert (script.folder / f"seen{rank}").read_text() == f"{int(signum)}\n"
    assert len(job.events("workers_started")) == 1 and "Traceback" not in job.err


@pytest.mark.parametrize(("timeout", "saved"), [("20", True), ("0.3", False)])
def test_shutdown_timeout_bounds_what_a_rank_may_save(
    ftlaunch: Launcher, script: Script, timeout: str, saved: bool
) -> None:
    body = HANDLER.replace("os._exit", "open(sys.argv[1] + 'saved', 'w').close(); os._exit")
    job = ftlaunch("--shutdown-timeout", timeout, script(body), script.folder / "seen", "2")
    wait_for_ready(job, 1)
    job.signal(signal.SIGTERM)
    assert job.wait() == (0 if saved else 143)
    assert (script.folder / "seensaved").exists() is saved


def test_second_interrupt_kills_at_once(ftlaunch: Launcher, script: Script) -> None:
    job = ftlaunch("--shutdown-timeout", "600", script(HANDLER), script.folder / "seen", "600")
    wait_for_ready(job, 1)
    job.signal(signal.SIGINT)
    wait_until(lambda: (script.folder / "seen0").exists())
    job.signal(signal.SIGINT)
    assert job.wait(20) == 130


def test_who_polls_for_preemption_is_not_killed_although_the_agent_has_not_read_of_it_yet(
    ftlaunch: Launcher, script: Script
) -> None:
    """Messages are read in batches, a signal comes between."""
    polls_and_is_called = """
from ftlaunch import heartbeat as hb
for _ in range(20): hb.beat(); time.sleep(0.001)
hb.should_save()
os.kill(os.getppid(), signal.SIGUSR1)
while not hb.should_save(): time.sleep(0.01)
print("saved", flush=True)
"""
    job = ftlaunch("--preempt-signal", "SIGUSR1", "--standby", "off", script(polls_and_is_called))
    assert job.wait(30) == 138
    assert "saved" in job.out


def test_hangup_stays_ignored_under_nohup(ftlaunch: Launcher, script: Script) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = ftlaunch(script("print('ready', flush=True)\nsys.stdin.readline()\ntime.sleep(0.5)\nprint('end')"))
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_ready(job, 1)
    job.signal(signal.SIGHUP)
    assert job.wait() == 0 and "end" in job.out


def test_wrapper_that_does_not_exec_is_gone_after_the_grace(ftlaunch: Launcher, tmp_path: Path) -> None:
    wrapper = tmp_path / "wrap.sh"
    wrapper.write_text(
        "#!/bin/sh\n" + "python3 -c \"print('ready', flush=True); import time; time.sleep(600)\"\necho after\n"
    )
    wrapper.chmod(0o755)
    for scope in ("leader", "group"):
        job = ftlaunch("--no-python", "--signal-scope", scope, "--shutdown-timeout", "1", wrapper)
        wait_for_ready(job, 1)
        job.signal(signal.SIGTERM)
        assert job.wait(20) == 143
        assert not job.processes()


def test_nothing_is_lost_of_what_a_killed_rank_printed(ftlaunch: Launcher, script: Script) -> None:
    body = "print('last line')\nprint('last error', file=sys.stderr)\nos.kill(os.getpid(), 9)"
    job = ftlaunch("--max-restarts", "0", script(body))
    assert job.wait() == 137
    assert "last line" in job.out and "last error" in job.err.split("Root Cause")[1]
    assert job.run_dir is not None and (job.run_dir / "logs/0/0.out").read_bytes() == b"last line\n"


def test_parents_error_file_gets_the_root_cause(ftlaunch: Launcher, script: Script) -> None:
    target = script.folder / "error.json"
    job = ftlaunch("--max-restarts", "0", script("raise KeyError('who')"), env={"TORCHELASTIC_ERROR_FILE": str(target)})
    assert job.wait() == 1
    message = json.loads(target.read_text())["message"]
    assert "KeyError" in message["message"] and message["errorCode"] == 1


def test_run_directory_tells_the_story(ftlaunch: Launcher, script: Script) -> None:
    job = ftlaunch(*TWO, "--max-restarts", "1", script("if RANK == 1 and GEN == 0: os.kill(os.getpid(), 9)"))
    assert job.wait() == 0
    names = [event["event"] for event in job.events()]
    order = ["job_started", "workers_started", "failure_detected", "workers_stopped", "workers_started", "job_finished"]
    remaining = iter(names)
    assert all(name in remaining for name in order), names
    (incident,) = job.incidents()
    assert incident["cause"]["rank"] == 1 and incident["cause"]["exit_code"] == -9 and incident["decision"] == "restart"
    assert [end["stopped_by_launcher"] for end in incident["consequences"] if end["rank"] == 1] == [False]
    assert "workers_started" in incident["phases_s"]


def test_no_torch_and_no_grpc_in_the_agent(ftlaunch: Launcher, script: Script) -> None:
    job = ftlaunch(*TWO, script("print('ready', flush=True)\nsignal.pause()"))
    wait_for_ready(job)
    maps = Path(f"/proc/{job.pid}/maps").read_text()
    assert not any(word in maps for word in ("libtorch", "grpc", "cygrpc", "numpy"))
    job.signal(signal.SIGTERM)
    job.wait()


def test_module_list_of_a_whole_run_has_nothing_heavy(script: Script, tmp_path: Path) -> None:
    """The same by ``sys.modules``, at the end of a run with a failure."""
    import subprocess
    import sys

    code = """
import os, sys
from ftlaunch.launcher import __main__ as m
def leave(code):
    bad = {"torch", "grpc", "pyetcd", "numpy", "rich", "pynvml", "psutil"} & set(sys.modules)
    print("BAD", sorted(bad), code, file=sys.stderr)
    sys.stderr.flush()
    real(code)
real = os._exit
os._exit = leave
m.main()
"""
    path = script("if RANK == 1 and GEN == 0: os.kill(os.getpid(), 9)")
    argv = [sys.executable, "-c", code, "--max-restarts", "1", "--run-dir", str(tmp_path / "run"), *TWO, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stderr.splitlines()[-1] == "BAD [] 0"
