"""``ftctl drill run`` as a user runs it: whole jobs, real faults, a verdict, and nothing left, however it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from support import procfs
from support.etcd import find_binary
from support.jobs import Job, Launcher
from support.needs import needs_etcd
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "examples" / "drill" / "train_tiny.py"
SAVE = ("--save-in", "{out}/saved", "--step-s", "0.01")
pytestmark = [pytest.mark.slow]


def drill(ftctl: Launcher, *arguments: str | Path) -> Job:
    return ftctl("drill", "run", "--nproc-per-node", "2", *arguments)


def result(job: Job, code: int = 0) -> dict[str, Any]:
    """The JSON that a drill has printed."""
    assert job.wait(90) == code, job.err
    shape: dict[str, Any] = json.loads(job.out)
    return shape


def temporary(job: Job) -> list[Path]:
    return list((job.home / "tmp").glob("ftlaunch-drill-*"))


def test_three_faults_of_a_plan_are_taken_well(ftctl: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = ROOT / "examples" / "drill" / "plan.yaml"
    job = drill(ftctl, "--faults", plan, "--margin", "5s", "--recover", "30s", "--out", out, "--json", TINY, *SAVE)
    shape = result(job)
    assert [(fault["id"], fault["ok"], fault["blamed"]) for fault in shape["faults"]] == [
        ("1-kill", True, 1),
        ("2-exception", True, 1),
        ("3-stop", True, 0),
    ]
    assert shape["faults"][0]["struck_at_step"] == 40 and shape["faults"][2]["struck_at_step"] == 120
    assert shape["ok"] and shape["seed"] == 7 and shape["exit_codes"] == [0] and shape["left_over"] == []
    assert shape["steps"]["made"] == 300 and shape["steps"]["problems"] == []
    assert shape["runs"] == [str(out / "node-0")] and (out / "node-0" / "events.jsonl").is_file()
    assert len(list((out / "node-0" / "incidents").glob("*.json"))) == 3
    assert "1/3 kill: rank 1 at step 40: detected after" in job.err


def test_a_table_for_people(ftctl: Launcher) -> None:
    job = drill(ftctl, "--fault", "kill:rank=0,step=12", "--margin", "5s", "--seed", "1", TINY, *SAVE, "--steps", "30")
    assert job.wait(60) == 0, job.err
    header, row, _, verdict = job.out.splitlines()
    assert header.startswith("FAULT") and row.split()[:4] == ["1-kill", "rank", "0", "12"] and row.endswith("ok")
    assert re.fullmatch(
        r"passed: 1 of 1 fault taken as they should be, 30 steps, none lost, \d+ repeated since a checkpoint, "
        r"nothing left over \(seed 1\)",
        verdict,
    )
    assert not temporary(job)


def test_what_did_not_happen_fails_the_drill_and_keeps_its_records(ftctl: Launcher) -> None:
    job = drill(ftctl, "--fault", "kill:rank=0,step=900", "--json", TINY, *SAVE, "--steps", "10")
    shape = result(job, 1)
    assert shape["faults"][0]["problems"] == ["not carried out: the job ended before (at step 900)"]
    assert f"records: {temporary(job)[0]}" in job.err


def test_a_budget_that_is_missed_fails_the_drill(ftctl: Launcher) -> None:
    fault = "stop:rank=1,step=10,detect=1ms"
    shape = result(drill(ftctl, "--fault", fault, "--json", TINY, *SAVE, "--steps", "30"), 1)
    assert not shape["ok"] and "detected only after" in shape["faults"][0]["problems"][0]


def test_steps_that_a_script_loses_fail_the_drill(ftctl: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(
        "import os, time\n"
        "from ftlaunch import heartbeat\n"
        "for step in range(1 + 100 * int(os.environ['TORCHELASTIC_RESTART_COUNT']), 130):\n"
        "    time.sleep(0.01)\n"
        "    heartbeat.beat(step)\n"
    )
    shape = result(drill(ftctl, "--fault", "kill:rank=0,step=20", "--margin", "5s", "--json", script), 1)
    assert (
        shape["faults"][0]["ok"] and "rank 0: a new life began with step 101, after 20" in shape["steps"]["problems"][0]
    )


def test_an_agent_that_is_killed_is_started_again(ftctl: Launcher) -> None:
    faults = ("--fault", "agent-kill:step=15", "--fault", "node-loss:step=40")
    shape = result(drill(ftctl, *faults, "--json", TINY, *SAVE, "--steps", "70"))
    assert [fault["ok"] for fault in shape["faults"]] == [True, True] and len(shape["runs"]) == 3
    assert shape["steps"]["made"] == 70 and shape["left_over"] == []


def test_what_outlives_its_agent_is_found_and_ended(ftctl: Launcher, tmp_path: Path) -> None:
    """A process without any of our variables, in a session of its own, that only a subreaper can know."""
    script = tmp_path / "escape.py"
    script.write_text(
        "import os, subprocess, time\n"
        "from pathlib import Path\n"
        "from ftlaunch import heartbeat\n"
        f"mark = Path({str(tmp_path)!r}) / 'pid'\n"
        "if os.environ['RANK'] == '0' and not mark.exists():\n"
        "    child = subprocess.Popen(['sleep', '600'], env={}, start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "    mark.write_text(str(child.pid))\n"
        "for step in range(1, 40):\n"
        "    time.sleep(0.01)\n"
        "    heartbeat.beat(step)\n"
    )
    shape = result(drill(ftctl, "--fault", "agent-kill:step=15", "--json", script), 1)
    escaped = int((tmp_path / "pid").read_text())
    assert shape["left_over"] == [f"pid {escaped} (sleep)"] and shape["faults"][0]["ok"]
    assert not procfs.alive(escaped)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_is_left_when_it_is_interrupted(ftctl: Launcher, signum: int, code: int) -> None:
    """Also not when it is killed: then the kernel ends the agents, and their guardians the rest."""
    faults = ("--fault", "kill:rank=0,step=10", "--fault", "kill:rank=0,step=100000")
    job = drill(ftctl, *faults, TINY, *SAVE, "--steps", "200000")
    job.wait_for_output("1/2 kill")
    before = procfs.descendants([job.pid]) - {job.pid}
    assert len(before) >= 4, "agent, guardian and two ranks"
    job.signal(signum)
    assert job.wait(20) == code
    wait_until(lambda: not any(map(procfs.alive, before)), 10, "everything of the drill is gone")
    if signum != signal.SIGKILL:
        assert "interrupted: everything that the drill had started was ended" in job.err and not temporary(job)


def test_the_job_is_stopped_when_the_drill_takes_too_long(ftctl: Launcher) -> None:
    arguments = ("--fault", "kill:rank=0,step=100000", "--timeout", "2s", "--json")
    shape = result(drill(ftctl, *arguments, TINY, *SAVE, "--steps", "200000"), 1)
    assert shape["problems"] == ["the job did not end within 2 s (--timeout)"]
    assert shape["faults"][0]["problems"] == ["not carried out: the job ended before (at step 100000)"]


def test_endless_jobs_are_stopped_when_all_is_done(ftctl: Launcher) -> None:
    arguments = ("--random", "2", "--kinds", "kill", "--steps", "3..6", "--seed", "5", "--margin", "5s")
    job = drill(ftctl, *arguments, "--stop-when-done", "--json", TINY, *SAVE, "--steps", "200000", "--save-every", "1")
    shape = result(job)
    assert [fault["ok"] for fault in shape["faults"]] == [True, True] and shape["exit_codes"] in ([143], [0])


@needs_etcd
def test_two_nodes_with_an_etcd_of_their_own(ftctl: Launcher) -> None:
    faults = [
        *("--fault", "kill:rank=3,step=15"),
        *("--fault", "etcd-stop:step=30,for=1s"),
        *("--fault", "net-cut:node=1,for=1s"),
        *("--fault", "agent-kill:node=1"),
    ]
    arguments = ("--nodes", "2", *faults, "--margin", "5s", "--recover", "30s", "--stop-when-done", "--json")
    launcher_env = {"ETCD_BINARY": str(find_binary())}
    job = ftctl("drill", *arguments, "--nproc-per-node=2", TINY, *SAVE, "--steps", "200000", env=launcher_env)
    shape = result(job)
    assert [(fault["kind"], fault["ok"]) for fault in shape["faults"]] == [
        ("kill", True),
        ("etcd-stop", True),
        ("net-cut", True),
        ("agent-kill", True),
    ]
    assert [fault["detected_s"] is None for fault in shape["faults"]] == [False, True, True, False]
    assert len(shape["runs"]) == 3 and shape["left_over"] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing is to go wrong: give --faults FILE"),
        (("--fault", "kill:rank=2,step=3"), "there is no rank 2, only 0 to 1"),
        (("--fault", "net-cut:node=0"), "net-cut needs a drill of several nodes"),
        (("--fault", "kill:rank=0", "--margin", "soon"), "must be seconds or a number with a unit"),
        (("--fault", "kill:rank=0", "--hang-flor", "3"), "unknown option '--hang-flor'; did you mean --hang-floor?"),
        (("--fault", "kill:rank=0", "--kinds", "kill"), "--kinds and --steps go with --random N"),
        (("--faults", "/nonexistent"), "cannot read the plan /nonexistent"),
        (("--fault", "kill:rank=0", "--out", str(ROOT)), "is not empty"),
        (("--fault", "kill:rank=0", "--hang-floor", "3x"), "--hang-floor"),
        (("--fault", "kill:rank=0", "--run-dir", "x"), "--run-dir is the drill's own to give: --out DIR keeps"),
        (("--fault", "kill:rank=0", "--nnodes", "2"), "give --nodes N instead of --nnodes"),
        (("--fault", "kill:rank=0", "--heartbeat", "off"), "not with --heartbeat off"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_code_2(
    ftctl: Launcher, arguments: tuple[str, ...], complaint: str
) -> None:
    job = drill(ftctl, *arguments, TINY, *SAVE)
    assert job.wait(20) == 2
    assert job.err.startswith("error: ") and complaint in job.err and job.err.count("\n") == 1 and job.out == ""
    assert not temporary(job)


def test_without_an_etcd_one_line_says_so(ftctl: Launcher, tmp_path: Path) -> None:
    job = ftctl(
        *("drill", "--nodes", "2", "--nproc-per-node", "1", "--fault", "kill:rank=0", TINY, *SAVE),
        env={"PATH": str(tmp_path), "ETCD_BINARY": None},
    )
    assert job.wait(20) == 2 and "needs an etcd binary: install etcd" in job.err and not temporary(job)


def test_memory_runs_out_in_a_group_of_its_own(ftctl: Launcher) -> None:
    from ftlaunch.launcher.drill.injector import make_group, remove_group

    group = make_group()
    if isinstance(group, str):
        job = drill(ftctl, "--fault", "oom:rank=0,step=10", TINY, *SAVE)
        assert job.wait(20) == 2 and "oom needs a memory control group of its own" in job.err
        return
    assert remove_group(group.path)
    shape = result(
        drill(ftctl, "--fault", "oom:rank=1,step=10", "--margin", "5s", "--json", TINY, *SAVE, "--steps", "30")
    )
    assert shape["faults"][0]["ok"] and shape["faults"][0]["reason"].startswith("was killed by SIGKILL")
    assert not list(group.path.parent.glob("ftlaunch-drill-*"))


def test_an_unprivileged_user_can_drill(ftctl: Launcher, unprivileged: Any, tmp_path: Path) -> None:
    script = unprivileged.home / "train_tiny.py"
    shutil.copy(TINY, script)
    os.chmod(script, 0o644)
    faults = ("--fault", "kill:rank=0,step=10", "--fault", "disk-full:rank=1,step=25")
    job = ftctl(
        *("drill", "run", "--nproc-per-node", "2", *faults, "--margin", "5s", "--json", script, *SAVE, "--steps", "50"),
        user=unprivileged,
    )
    shape = result(job)
    assert [fault["ok"] for fault in shape["faults"]] == [True, True]
    assert "File too large" in shape["faults"][1]["reason"]
