"""The environment of ranks: what the launcher found, plus torchrun's contract, plus our own few names. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from ftlaunch.launcher.config import Config, RestartConfig
from ftlaunch.launcher.host import visible
from ftlaunch.rendezvous.interface import World

UNLIMITED_RESTARTS = 2**31 - 1
"""TORCHELASTIC_MAX_RESTARTS when there is no limit by number; scripts read it as an integer."""

PRIVATE = (
    "FTLAUNCH_AFFINITY",
    "FTLAUNCH_AGENT_PID",
    "FTLAUNCH_DEATH_FD",
    "FTLAUNCH_DUMP_FD",
    "FTLAUNCH_FLAGS_FD",
    "FTLAUNCH_GENERATION",
    "FTLAUNCH_MARK",
    "FTLAUNCH_RESUME_FROM",
    "FTLAUNCH_RESUME_STEP",
    "FTLAUNCH_RUN_ID",
    "FTLAUNCH_SOCKET",
    "TORCHELASTIC_ERROR_FILE",
)
"""What belongs to one worker of one agent. A launcher that runs inside a rank must not hand its own on."""


def node_environment(config: Config) -> dict[str, str]:
    """What the ranks of this node see together: the launcher's own environment, less GPUs that ``--gpus`` left out."""
    environment = _inherited(config)
    if config.workers.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(config.workers.gpus)
    return environment


def worker_environment(config: Config, world: World, local_rank: int, *, extra: Mapping[str, str]) -> dict[str, str]:
    """Everything the process of this local rank starts with. ``extra`` is what the agent adds; it wins.

    RANK, WORLD_SIZE, MASTER_ADDR and the like are overwritten whatever was inherited; OMP_NUM_THREADS,
    PYTHONUNBUFFERED and TORCH_NCCL_ASYNC_ERROR_HANDLING are the user's where set.
    """
    environment = _inherited(config)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if config.workers.omp_threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(config.workers.omp_threads))
    environment.update(_torchrun_contract(config, world, local_rank))
    environment.update(_visible_gpus(config, local_rank))
    environment["FTLAUNCH_GENERATION"] = str(world.generation)
    environment["FTLAUNCH_RUN_ID"] = world.run_id
    environment.update(extra)
    return environment


def _inherited(config: Config) -> dict[str, str]:
    return {name: value for name, value in config.environment.items() if name not in PRIVATE}


def _torchrun_contract(config: Config, world: World, local_rank: int) -> dict[str, str]:
    rank, world_size = str(world.rank_offset + local_rank), str(world.world_size)
    return {
        "LOCAL_RANK": "0" if config.workers.virtual_local_rank else str(local_rank),
        "RANK": rank,
        "GROUP_RANK": str(world.group_rank),
        "ROLE_RANK": rank,
        "ROLE_NAME": config.workers.role,
        "LOCAL_WORLD_SIZE": str(config.workers.nproc),
        "WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": str(len(world.members)),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(world.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(_restart_limit(config.restarts)),
        "TORCHELASTIC_RUN_ID": world.run_id,
        # Rank 0 hosts the store: one that outlived a generation would hold its stale keys.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signal.Signals(number).name for number in config.stop.signals),
    }


def _restart_limit(restarts: RestartConfig) -> int:
    return UNLIMITED_RESTARTS if restarts.max_restarts is None else restarts.max_restarts


def _visible_gpus(config: Config, local_rank: int) -> dict[str, str]:
    """Nothing, unless an option asks for another choice than the inherited one."""
    gpus = config.workers.gpus
    if config.workers.virtual_local_rank:
        entries = visible.entries(config.environment) if gpus is None else gpus
        return {"CUDA_VISIBLE_DEVICES": visible.for_rank(entries, local_rank)}
    return {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
