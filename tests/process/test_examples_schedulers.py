"""The manifests' command lines as PID 1 of a container; the batch script of Slurm with a stand-in for srun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch.launcher.cli import command_line
from ftlaunch.launcher.exit_codes import ExitCode
from support import procfs
from support.etcd import etcd
from support.machines import machine
from support.manifests import EXAMPLES, SCRIPT, Trainer, trainers
from support.needs import need_etcd, need_pid_namespace
from support.scripts import HEAD
from support.waiting import wait_until

BATCH = EXAMPLES / "slurm" / "train.sbatch"
SHUTDOWN_S = 1
KUBEFLOW_HERE = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0"}
# An orphan that PID 1 has to reap: the rank is ready only when nothing is left of it.
ORPHAN = """
left = subprocess.run(["sh", "-c", "setsid sleep 0.1 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
while os.path.exists(f"/proc/{int(left.stdout)}"): time.sleep(0.01)
"""
SAVES = ORPHAN + "signal.signal(15, lambda *_: (say('saved'), sys.exit(0)))\nsay('ready')\nwhile True: signal.pause()"
LOOKS = """
from ftlaunch import heartbeat as hb
hb.beat(1)
say("ready")
while not hb.should_save(): time.sleep(0.01)
say("saved")
"""
IGNORES = "signal.signal(15, signal.SIG_IGN)\nsay('ready')\nwhile True: time.sleep(1)"
FAILS = "raise ValueError('no such data set')"
HOPELESS = """
from ftlaunch import heartbeat as hb
hb.beat(1)
hb.request_stop("nothing will change")
signal.pause()
"""
each_trainer = pytest.mark.parametrize("trainer", trainers(), ids=lambda trainer: trainer.name)


@pytest.fixture(scope="module")
def meeting_point() -> Iterator[str]:
    """In the place of the cluster's etcd."""
    need_etcd()
    with etcd() as cluster:
        yield f"http://{cluster.endpoints}"


def here(trainer: Trainer, folder: Path, endpoint: str, *more: str) -> list[str]:
    """The container's command line on one node of two ranks: what the cluster would provide is of this machine.

    ``more`` options come last, where they win.
    """
    changed = {
        "--nnodes": "1",
        "--nproc-per-node": "2",
        "--local-addr": "127.0.0.1",
        "--rdzv-endpoint": endpoint,
        # As every Job has a UID of its own.
        "--rdzv-id": str(folder),
        "--health-port": "0",
        "--metrics-port": "0",
    }
    words = []
    for word in trainer.argv[1:]:
        name, _, value = word.partition("=")
        if name == "--rdzv-conf":
            # This etcd has no certificates; tests/process/test_examples_etcd.py has one that has.
            value = ",".join(pair for pair in value.split(",") if "/" not in pair)
        elif value.startswith("/"):
            value = f"{folder}{value}"
        if name == SCRIPT:
            words += [*more, str(folder / SCRIPT)]
        else:
            words.append(f"{name}={changed.get(name, value)}")
    (folder / "checkpoints").mkdir()
    return [sys.executable, "-m", "ftlaunch.launcher", f"--termination-log={folder / 'reason'}", *words]


def as_pid_1(trainer: Trainer, folder: Path, endpoint: str, body: str, *more: str) -> subprocess.Popen[bytes]:
    (folder / SCRIPT).write_text(HEAD + body)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("PET_", "FTLAUNCH_"))}
    given = {**trainer.environ, **{name: text for name, text in KUBEFLOW_HERE.items() if name in trainer.environ}}
    return subprocess.Popen(
        [*need_pid_namespace(), *here(trainer, folder, endpoint, *more)],
        env={**environ, **given, "TMPDIR": str(folder)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def terminate_when_ready(outer: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, str]:
    """SIGTERM to PID 1 once both ranks are ready; its exit code, and what was said after that."""
    assert outer.stdout is not None
    ready = 0
    while ready < 2:
        line = outer.stdout.readline()
        assert line, outer.communicate()[1].decode()
        ready += b"ready" in line
    (agent,) = procfs.children(outer.pid)
    os.kill(agent, signal.SIGTERM)
    out, _ = outer.communicate(timeout=timeout_s)
    return outer.returncode, out.decode()


def ends_the_job(trainer: Trainer, code: int) -> bool:
    """Whether the manifest's policy fails the whole Job for a pod that ended with ``code``."""
    rules = [rule for rule in trainer.job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    return any(rule["action"] == "FailJob" and code in rule["onExitCodes"]["values"] for rule in rules)


@each_trainer
@pytest.mark.parametrize("body", [SAVES, LOOKS], ids=["SIGTERM", "should_save"])
def test_a_pod_that_is_told_to_go_saves_and_is_not_completed(
    trainer: Trainer, tmp_path: Path, meeting_point: str, body: str
) -> None:
    """With the manifest's own times."""
    with as_pid_1(trainer, tmp_path, meeting_point, body) as outer:
        code, out = terminate_when_ready(outer, trainer.pod["terminationGracePeriodSeconds"])
    assert (code, out.count("saved")) == (ExitCode.TERMINATED, 2)
    assert not ends_the_job(trainer, code)


@each_trainer
def test_ranks_that_do_not_listen_are_gone_within_the_grace(
    trainer: Trainer, tmp_path: Path, meeting_point: str
) -> None:
    """With the manifest's own difference between the two times."""
    told_s = int(next(word for word in trainer.argv if word.startswith("--shutdown-timeout=")).partition("=")[2])
    margin_s = trainer.pod["terminationGracePeriodSeconds"] - told_s
    with as_pid_1(trainer, tmp_path, meeting_point, IGNORES, f"--shutdown-timeout={SHUTDOWN_S}") as outer:
        assert terminate_when_ready(outer, SHUTDOWN_S + margin_s)[0] == ExitCode.TERMINATED


@each_trainer
@pytest.mark.parametrize(
    ("body", "more", "code", "reason"),
    [
        (FAILS, (), 1, "no such data set"),
        (HOPELESS, (), 76, "nothing will"),
        ("", ("--rdzv-endpoint=127.0.0.1:9", "--rdzv-conf=connect_timeout=1"), 69, "127.0.0.1:9"),
    ],
    ids=["1", "76", "69"],
)
def test_code_and_termination_message_tell_why_a_pod_ended(
    trainer: Trainer,
    tmp_path: Path,
    meeting_point: str,
    body: str,
    more: tuple[str, ...],
    code: int,
    reason: str,
) -> None:
    with as_pid_1(trainer, tmp_path, meeting_point, body, *more) as outer:
        _, err = outer.communicate(timeout=60)
    assert outer.returncode == code, err.decode()
    assert ends_the_job(trainer, code) is (code in (ExitCode.USAGE, ExitCode.NO_PROGRESS))
    assert reason in (tmp_path / "reason").read_text()


@each_trainer
def test_a_wrong_command_line_ends_the_whole_job(trainer: Trainer, tmp_path: Path, meeting_point: str) -> None:
    with as_pid_1(trainer, tmp_path, meeting_point, "", "--no-such-option") as outer:
        _, err = outer.communicate(timeout=60)
    assert (outer.returncode, ends_the_job(trainer, outer.returncode)) == (ExitCode.USAGE, True)
    assert b"--no-such-option" in err


# -- Slurm ----------------------------------------------------------------------------------------------------------

# Like srun: the options before the program are its own, signals go on to the task, the task's code is its code.
SRUN = """#!{python}
import json, os, sys
words = sys.argv[1:]
while words[0].startswith("--"): words.pop(0)
json.dump(words, open("task", "w"))
os.execv({task!r}, [{task!r}, *words])
"""
SAVES_WHEN_ASKED = "#!/bin/sh\ntrap 'echo saved >asked; exit 138' USR1\n: >running\nwhile :; do sleep 0.01; done\n"


def batch(folder: Path, task: str, **environ: str) -> subprocess.Popen[bytes]:
    programs = folder / "bin"
    programs.mkdir()
    texts = {
        "srun": SRUN.format(python=sys.executable, task=str(programs / "task")),
        "scontrol": '#!/bin/sh\necho "$@" >>queued\n',
        "task": task,
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "0", "ETCD": "http://etcd1:2379"}
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", str(BATCH)], cwd=folder, env={**os.environ, **slurm, **environ, "PATH": path}, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (1, False), (2, False), (69, True), (75, True), (76, False), (137, False)]
)
def test_slurm_queues_again_what_may_go_better_elsewhere(tmp_path: Path, code: int, again: bool) -> None:
    with batch(tmp_path, f"#!/bin/sh\nexit {code}\n") as script:
        script.communicate(timeout=30)
    assert script.returncode == (0 if again else code)
    queued = tmp_path / "queued"
    assert (queued.read_text() if queued.exists() else "") == ("requeue 7\n" if again else "")


def test_slurm_does_not_queue_again_for_ever(tmp_path: Path) -> None:
    with batch(tmp_path, "#!/bin/sh\nexit 75\n", SLURM_RESTART_COUNT="20") as script:
        _, err = script.communicate(timeout=30)
    assert script.returncode == 75
    assert b"not queued again" in err and not (tmp_path / "queued").exists()


def test_slurms_warning_reaches_the_agent_and_the_job_is_queued_again(tmp_path: Path) -> None:
    with batch(tmp_path, SAVES_WHEN_ASKED) as script:
        wait_until((tmp_path / "running").exists, 30)
        script.send_signal(signal.SIGUSR1)
        script.communicate(timeout=30)
    assert (tmp_path / "asked").read_text() == "saved\n"
    assert script.returncode == 0
    assert (tmp_path / "queued").read_text() == "requeue 7\n"


def test_a_cancelled_slurm_job_is_not_queued_again(tmp_path: Path) -> None:
    task = SAVES_WHEN_ASKED.replace("USR1", "TERM").replace("138", "143")
    with batch(tmp_path, task) as script:
        wait_until((tmp_path / "running").exists, 30)
        script.terminate()
        script.communicate(timeout=30)
    assert script.returncode == 143
    assert (tmp_path / "asked").exists() and not (tmp_path / "queued").exists()


def test_the_batch_scripts_command_line_is_accepted(tmp_path: Path) -> None:
    with batch(tmp_path, "#!/bin/sh\n") as script:
        script.communicate(timeout=30)
    program, *words = json.loads((tmp_path / "task").read_text())
    (tmp_path / SCRIPT).touch()
    words = [str(tmp_path / SCRIPT) if word == SCRIPT else word for word in words]
    config = command_line.parse(words, {"SLURM_NODEID": "3"}, machine(gpus=8)).config
    assert program == "ftlaunch"
    assert (config.rendezvous.min_nodes, config.rendezvous.node_rank) == (4, 3)
    assert config.rendezvous.job_id == "slurm-7-0"
    assert config.stop.preempt_signals == (signal.SIGUSR1,)


def test_an_agent_that_slurm_warns_ends_with_the_code_that_queues_again(tmp_path: Path) -> None:
    """The real agent in the place of the task: ranks that poll see it, save, and leave with 0.

    Also when they have just begun to poll, and the agent has not read of it yet.
    """
    rank = tmp_path / "rank.py"
    rank.write_text(
        HEAD
        + """
from ftlaunch import heartbeat as hb
hb.should_save()
open(f"polls-{RANK}", "w").close()
while not hb.should_save(): time.sleep(0.01)
open(f"saved-{RANK}", "w").close()
"""
    )
    options = "--nproc-per-node 2 --preempt-signal=SIGUSR1"
    run = f"--run-dir {tmp_path / 'run'} --standby off"
    task = f"#!/bin/sh\nexec {sys.executable} -m ftlaunch.launcher {options} {run} {rank}\n"
    with batch(tmp_path, task) as script:
        wait_until(lambda: len(list(tmp_path.glob("polls-*"))) == 2, 60)
        script.send_signal(signal.SIGUSR1)
        _, err = script.communicate(timeout=60)
    assert len(list(tmp_path.glob("saved-*"))) == 2, err.decode()
    assert (tmp_path / "queued").exists(), err.decode()
