"""What this machine offers a job: kernel, memory, control groups, GPUs, directories. Changes nothing that stays."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ftlaunch.heartbeat.watching import endpoint
from ftlaunch.launcher.config import CommandKind, Config, StandbyMode
from ftlaunch.launcher.errors import SpawnError, UsageError
from ftlaunch.launcher.evidence import cgroups
from ftlaunch.launcher.ftctl._finding import Finding, error, note, ok, warning
from ftlaunch.launcher.ftctl._format import size
from ftlaunch.launcher.gpu.client import start_client
from ftlaunch.launcher.gpu.nvml_errors import NvmlError, NvmlUnavailable
from ftlaunch.launcher.health.result import Healthy
from ftlaunch.launcher.health.storage import ask_paths, check_path
from ftlaunch.launcher.host import kernel, spare_room, ulimits
from ftlaunch.launcher.host.quick_look import driver_present
from ftlaunch.launcher.journal.rundir import candidate_roots, is_running
from ftlaunch.launcher.ranks.standby import FIRST_GUESS_BYTES
from ftlaunch.launcher.wording import counted

_SHM = "/dev/shm"
_SHM_SMALL = 1 << 30
_STORAGE_TIMEOUT_S = 5.0
_NVML_TIMEOUT_S = 30.0


def check_node(config: Config) -> Iterator[Finding]:
    """Everything about this machine; takes some seconds at most."""
    yield from _kernel()
    yield from _cgroup()
    yield from _gpus(config)
    yield from _memory(config)
    yield from _limits(config)
    yield from _shared_memory(config)
    yield from _run_directory(config)
    yield from _sockets(config)
    yield from _directories(config)


def _kernel() -> Iterator[Finding]:
    release = platform.release()
    try:
        kernel.require_pidfd()
        yield ok("kernel", f"Linux {release}, with pidfd")
    except UsageError as problem:
        yield error("kernel", str(problem))
    if kernel.become_subreaper():
        yield ok("subreaper", "allowed: nothing that a rank starts can escape")
    else:
        yield warning("subreaper", "refused by this system: processes that leave their rank may be missed")


def _cgroup() -> Iterator[Finding]:
    group = cgroups.locate("self")
    if group is None:
        yield note("cgroup", "no memory control group is visible: a death by lack of memory cannot be proved")
        return
    counters = cgroups.read_counters(group)
    limit = f"limit {size(counters.limit)}" if counters is not None and counters.limit else "no memory limit"
    yield ok("cgroup", f"version {group.version}, {limit}, memory counters readable")
    if not os.access(group.path / "cgroup.procs", os.W_OK):
        yield note("cgroup", "not writable: leftovers are found by descent instead, which is complete as well")
    together = cgroups.kills_all_at_once(group)
    if together is not None:
        yield warning(
            "cgroup",
            f"memory.oom.group is 1 at {together}: when one rank runs out of memory the kernel kills ftlaunch too, and "
            "nobody restarts the job (in Kubernetes: kubelet's singleProcessOOMKill)",
        )


def _gpus(config: Config) -> Iterator[Finding]:
    if not driver_present(config.environment):
        yield note("GPUs", "no NVIDIA driver here: GPU memory is not watched")
        return
    try:
        yield asyncio.run(_ask_nvml(config))
    except NvmlUnavailable as problem:
        yield note("GPUs", f"a driver, but no NVML to ask ({problem}): GPU memory is not watched")
    except NvmlError as problem:
        yield warning("GPUs", f"NVML does not answer as it should: {problem}")
    except SpawnError as problem:
        yield warning("GPUs", f"NVML could not be asked: {problem}")


async def _ask_nvml(config: Config) -> Finding:
    environment = config.environment
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if config.workers.gpus is not None:
        visible = ",".join(config.workers.gpus)
    client = start_client(environment)
    try:
        devices, told = await client.open(visible, environment.get("CUDA_DEVICE_ORDER", ""), "", _NVML_TIMEOUT_S)
    finally:
        await client.close()
    nproc = config.workers.nproc
    text = f"{len(devices)} visible for {nproc} ranks" + (f"; {told}" if told else "")
    if devices and len(devices) < nproc:
        return warning("GPUs", f"{text}: some ranks share a GPU")
    return ok("GPUs", text)


def _memory(config: Config) -> Iterator[Finding]:
    free = spare_room.available_bytes()
    if config.standby.mode is StandbyMode.OFF or config.command.kind is CommandKind.BINARY:
        yield ok("memory", f"{size(free)} available")
        return
    needed = config.workers.nproc * FIRST_GUESS_BYTES
    told = f"{size(free)} available, {counted(config.workers.nproc, 'standby')} would take about {size(needed)}"
    if free > 2 * needed:
        yield ok("memory", told)
    elif config.standby.mode is StandbyMode.ON:
        yield warning("memory", f"{told}: --standby on keeps them all the same")
    else:
        yield note("memory", f"{told}: they will not be kept (--standby auto)")


def _limits(config: Config) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    ranks, nodes = config.workers.nproc, config.rendezvous.max_nodes
    least, most = (ulimits.files_needed(ranks, standbys, nodes) for standbys in (False, True))
    if soft != resource.RLIM_INFINITY and soft < least:
        yield error("ulimit -n", f"{soft} open files are allowed, {counted(ranks, 'rank')} need about {least}")
    elif soft != resource.RLIM_INFINITY and soft < most and config.standby.mode is not StandbyMode.OFF:
        yield warning("ulimit -n", f"{soft} open files are allowed, with standbys about {most} are needed")
    else:
        yield ok("ulimit -n", "unlimited" if soft == resource.RLIM_INFINITY else str(soft))


def _shared_memory(config: Config) -> Iterator[Finding]:
    try:
        facts = os.statvfs(_SHM)
    except OSError as problem:
        yield warning(_SHM, f"cannot be used ({problem.strerror}): data loaders and NCCL need it")
        return
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    told = f"{size(free)} of {size(total)} free"
    if total < _SHM_SMALL:
        yield warning(
            _SHM,
            f"{told}: too small for data loaders with workers, and for NCCL; docker --shm-size, in Kubernetes an "
            f"emptyDir of medium Memory at {_SHM}",
        )
    elif free < total // 20:
        yield warning(_SHM, f"only {told}")
    else:
        yield ok(_SHM, told)


def _run_directory(config: Config) -> Iterator[Finding]:
    if config.logs.run_dir:
        path = Path(os.path.abspath(config.logs.run_dir))
        if is_running(path):
            yield error("run directory", f"{path} is in use by a running ftlaunch")
        elif problem := _unwritable(path):
            yield error("run directory", f"{path}: {problem}")
        else:
            yield ok("run directory", str(path))
        return
    problems = []
    for root in candidate_roots(config.environment):
        problem = _unwritable(root)
        if not problem:
            yield ok("run directory", f"{root}/…")
            return
        problems.append(f"{root}: {problem}")
    yield warning("run directory", f"none can be made ({'; '.join(problems)}): no records, no logs, no ftctl")


def _sockets(config: Config) -> Iterator[Finding]:
    try:
        opened = endpoint.open_endpoint(config.environment)
    except endpoint.EndpointError as problem:
        yield error("sockets", str(problem))
        return
    directory = opened.directory
    opened.close()
    if directory:
        yield ok("sockets", f"below {os.path.dirname(directory)}")
    else:
        yield warning("sockets", "no directory for them (XDG_RUNTIME_DIR, TMPDIR, /tmp): ftctl will not find this job")


def _directories(config: Config) -> Iterator[Finding]:
    named = (("--log-dir", config.logs.log_dir), ("--checkpoint-dir", config.checkpoints.directory))
    wanted = {path: option for option, path in named if path and os.path.abspath(path) != os.devnull}
    if not wanted:
        return
    try:
        answers = asyncio.run(ask_paths(list(wanted), _STORAGE_TIMEOUT_S, config.environment))
    except SpawnError as problem:
        yield warning("storage", f"could not be asked: {problem}")
        return
    for facts in answers:
        option = wanted[facts.path]
        result = check_path(facts, _STORAGE_TIMEOUT_S)
        if not isinstance(result, Healthy):
            yield error(option, result.reason)
        elif problem_text := _unwritable(Path(os.path.abspath(facts.path))):
            yield error(option, f"{facts.path}: {problem_text}")
        else:
            yield ok(option, f"{facts.path}, {size(facts.free)} free")


def _unwritable(path: Path) -> str:
    """Why nothing can be written in ``path``, or where it would be made; empty when it can. Leaves no trace."""
    place = path
    while not place.exists():
        if place.parent == place:
            break
        place = place.parent
    if not place.is_dir():
        return f"{place} is no directory"
    try:
        # Tried, not asked: access(2) knows nothing of quotas and network file systems.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"ftctl check\n")
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""
