"""torchrun's contract with a worker, name by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftlaunch.launcher.cli import command_line
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.ranks.environment import UNLIMITED_RESTARTS, worker_environment
from ftlaunch.rendezvous.interface import Member, World
from support.machines import machine

WORLD = World(
    generation=4,
    members=(Member("a", "ha", 0, 3), Member("b", "hb", 1, 2)),
    group_rank=1,
    rank_offset=3,
    world_size=5,
    master_addr="10.0.0.1",
    master_port=4321,
    restart_count=2,
    run_id="job",
)


def config(*arguments: str, **environ: str) -> Config:
    return command_line.parse(["--nproc-per-node", "2", *arguments, "-m", "train"], environ, machine()).config


def test_the_whole_contract() -> None:
    found = worker_environment(config("--role", "trainer", "--max-restarts", "7"), WORLD, 1, extra={"X": "y"})
    assert found == {
        "LOCAL_RANK": "1",
        "RANK": "4",
        "GROUP_RANK": "1",
        "ROLE_RANK": "4",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "5",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4321",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "7",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "FTLAUNCH_GENERATION": "4",
        "FTLAUNCH_RUN_ID": "job",
        "X": "y",
    }


def test_the_users_own_values_stay() -> None:
    users = {
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "CUDA_VISIBLE_DEVICES": "3,1",
        "PET_NPROC_PER_NODE": "9",
        "FTLAUNCH_KILL_GRACE": "1",
        "PYTHONPATH": "here",
    }
    found = worker_environment(config(**users), WORLD, 0, extra={})
    assert {name: found[name] for name in users} == users


def test_inherited_ranks_are_overwritten() -> None:
    inherited = dict.fromkeys(
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
        "99",
    )  # fmt: skip
    found = worker_environment(config(**inherited), WORLD, 0, extra={})
    assert "99" not in found.values()


def test_an_outer_launchers_private_names_do_not_reach_the_ranks() -> None:
    """Ranks of a launcher inside a rank would else beat to the outer agent, and write its error file."""
    outer = {
        "FTLAUNCH_SOCKET": "/outer",
        "FTLAUNCH_MARK": "outer",
        "FTLAUNCH_DEATH_FD": "5",
        "FTLAUNCH_RESUME_FROM": "outer/step-3",
        "TORCHELASTIC_ERROR_FILE": "/outer/error.json",
    }
    inner = config(**outer)
    assert inner.error_file == "/outer/error.json"
    found = worker_environment(inner, WORLD, 0, extra={"FTLAUNCH_MARK": "inner"})
    assert found["FTLAUNCH_MARK"] == "inner"
    assert not set(found) & (set(outer) - {"FTLAUNCH_MARK"})


def test_omp_threads_of_one_rank_stay_unset() -> None:
    one = command_line.parse(["-m", "train"], {}, machine()).config
    assert "OMP_NUM_THREADS" not in worker_environment(one, WORLD, 0, extra={})


def test_no_limit_of_restarts_is_a_big_number() -> None:
    found = worker_environment(config(), WORLD, 0, extra={})
    assert int(found["TORCHELASTIC_MAX_RESTARTS"]) == UNLIMITED_RESTARTS


@pytest.mark.parametrize(
    ("arguments", "visible", "local_rank", "expected"),
    [
        ([], None, 1, ("1", None)),
        ([], "3,1", 1, ("1", "3,1")),
        (["--virtual-local-rank"], None, 1, ("0", "1")),
        (["--virtual-local-rank"], "3, 1", 1, ("0", "1")),
        (["--virtual-local-rank"], "GPU-aa,MIG-bb", 1, ("0", "MIG-bb")),
        (["--virtual-local-rank"], "", 1, ("0", "")),
        (["--gpus", "1,0"], "7,8,9", 0, ("0", "8,7")),
        (["--gpus", "1,0", "--virtual-local-rank"], "7,8,9", 1, ("0", "7")),
        (["--gpus", "4,5"], None, 0, ("0", "4,5")),
    ],
)
def test_visible_gpus(
    arguments: list[str], visible: str | None, local_rank: int, expected: tuple[str, str | None]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = worker_environment(config(*arguments, **environ), WORLD, local_rank, extra={})
    assert (found["LOCAL_RANK"], found.get("CUDA_VISIBLE_DEVICES")) == expected


def test_nothing_given_is_changed() -> None:
    given = config(A="b")
    before = replace(given, environment=dict(given.environment))
    worker_environment(given, WORLD, 0, extra={"C": "d"})
    assert given == before
