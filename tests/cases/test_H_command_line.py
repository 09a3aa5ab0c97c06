"""Reports of arguments, interpreters and variables that did not arrive as they were meant."""

from __future__ import annotations

import sys
from pathlib import Path

from support.jobs import Launcher
from support.scripts import TWO, write
from support.waiting import wait_until


def test_H1_arguments_of_the_script_arrive_byte_for_byte(ftlaunch: Launcher, tmp_path: Path) -> None:
    given = [
        "--mo",
        "0.9",
        "--r=16",
        "--log",
        "--",
        "--x",
        "",
        "-h",
        "--nproc-per-node",
        "7",
        "--nproc_per_node",
        " a b",
    ]
    job = ftlaunch("--nproc_per_node", "2", write(tmp_path, "say(repr(sys.argv[1:]))"), *given)
    assert job.wait() == 0
    assert sorted(job.out.splitlines()) == [f"[default{rank}]:{given!r}" for rank in range(2)]


def test_H3_interpreter_and_flags_are_those_of_the_launcher(ftlaunch: Launcher, tmp_path: Path) -> None:
    body = "say(sys.executable, sys._xoptions.get('case'), 'ignore' in sys.warnoptions)"
    job = ftlaunch(write(tmp_path, body))
    assert job.wait() == 0 and job.out == f"[default0]:{sys.executable} None False\n"


def test_H3_another_environment_than_the_active_one_is_noted(ftlaunch: Launcher, tmp_path: Path) -> None:
    other = tmp_path / "venv"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python").symlink_to(sys.executable)
    job = ftlaunch(write(tmp_path, "pass"), env={"VIRTUAL_ENV": str(other)})
    assert job.wait() == 0
    assert str(other) in job.err and sys.executable in job.err


def test_H3_python_exec_names_the_interpreter_of_the_ranks(ftlaunch: Launcher, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nCHOSEN=1 exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    job = ftlaunch(write(tmp_path, "say(os.environ.get('CHOSEN'))"), env={"PYTHON_EXEC": str(wrapper)})
    assert job.wait() == 0 and job.out == "[default0]:1\n"


INHERITED = {
    "RANK": "5",
    "WORLD_SIZE": "9",
    "LOCAL_RANK": "3",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "2",
    "MASTER_ADDR": "nowhere.invalid",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "old",
}
SHOW = """
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE".split()
say(*(os.environ[name] for name in names),
    os.environ["MASTER_ADDR"] != "nowhere.invalid", os.environ["MASTER_PORT"] != "1",
    os.environ["TORCHELASTIC_RUN_ID"] != "old")
"""


def test_H5_what_an_operator_set_for_nodes_is_not_what_ranks_get(ftlaunch: Launcher, tmp_path: Path) -> None:
    job = ftlaunch(*TWO, write(tmp_path, SHOW), env=INHERITED)
    assert job.wait() == 0
    assert sorted(job.out.splitlines()) == [f"[default{rank}]:{rank} 2 {rank} 2 0 1 True True True" for rank in (0, 1)]


def test_H5_pet_variables_are_defaults_and_the_command_line_wins(ftlaunch: Launcher, tmp_path: Path) -> None:
    script = write(tmp_path, "if RANK == 0: say(os.environ['WORLD_SIZE'])")
    environment = {"PET_NPROC_PER_NODE": "3"}
    jobs = [ftlaunch(script, env=environment), ftlaunch("--nproc-per-node", "2", script, env=environment)]
    assert [(job.wait(), job.out) for job in jobs] == [(0, "[default0]:3\n"), (0, "[default0]:2\n")]


def test_H5_a_launcher_inside_a_rank_works_and_dies_with_it(ftlaunch: Launcher, tmp_path: Path) -> None:
    """Once to its end, and once killed in the middle: nothing of the inner job is left."""
    inner = write(
        tmp_path, "say('inner', RANK, 'of', os.environ['WORLD_SIZE'], GEN)\nsys.argv[1:] and signal.pause()", "i.py"
    )
    command = f"[sys.executable, '-m', 'ftlaunch.launcher', '--nproc-per-node', '2', {str(inner)!r}"
    body = f"""
if GEN == 0:
    subprocess.Popen({command}, "stay"])
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    os.kill(os.getpid(), 9)
sys.exit(subprocess.run({command}]).returncode)
"""
    job = ftlaunch("--max-restarts", "1", write(tmp_path, body), tmp_path / "go")
    wait_until(lambda: job.out.count("inner") == 2, 30)
    (tmp_path / "go").touch()
    assert job.wait(30) == 0
    said = [line.split("inner ")[1] for line in job.out.splitlines() if "inner" in line]
    assert sorted(said) == ["0 of 2 0", "0 of 2 0", "1 of 2 0", "1 of 2 0"]
    assert not job.processes()
