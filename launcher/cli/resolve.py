"""Settings become the frozen :class:`Config`; what cannot work is refused here, before anything is spawned."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ftlaunch.launcher.cli.machine import Machine
from ftlaunch.launcher.cli.resolve_rendezvous import ETCD_SECRETS, rendezvous
from ftlaunch.launcher.cli.script import command
from ftlaunch.launcher.cli.settings import Settings
from ftlaunch.launcher.cli.values import show
from ftlaunch.launcher.config import (
    CheckpointConfig,
    CommandConfig,
    CommandKind,
    Config,
    HeartbeatConfig,
    LogConfig,
    MetricsConfig,
    NodeConfig,
    RestartConfig,
    StandbyConfig,
    StandbyMode,
    StopConfig,
    WorkersConfig,
)
from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.host.visible import VISIBLE, entries, narrow


def resolve(
    settings: Settings, script: str | None, args: Sequence[str], environ: Mapping[str, str], machine: Machine
) -> Config:
    """Everything the agent needs to know. ``settings`` is brought up to date with what follows from other values.

    Raises :class:`UsageError`.
    """
    if script is None and settings["print-config"]:
        wanted = CommandConfig(CommandKind.SCRIPT, "")
    else:
        wanted = command(settings, script, args, environ, machine)
    meeting = rendezvous(settings, machine)
    names = ETCD_SECRETS if meeting.backend == "etcd" else ()
    secrets = {name: environ[name] for name in names if name in environ}
    workers = _workers(settings, environ, machine)
    _note_without_effect(settings, environ)
    return Config(
        command=wanted,
        rendezvous=replace(meeting, secrets=secrets),
        workers=workers,
        restarts=_restarts(settings),
        checkpoints=_checkpoints(settings),
        stop=_stop(settings),
        heartbeat=_heartbeat(settings),
        standby=_standby(settings),
        logs=_logs(settings, environ, workers.nproc),
        node=_node(settings),
        metrics=_metrics(settings),
        torchrun_exit_codes=settings["torchrun-exit-codes"],
        error_file=environ.get("TORCHELASTIC_ERROR_FILE") or None,
        environment={name: value for name, value in environ.items() if name not in secrets},
    )


def _workers(settings: Settings, environ: Mapping[str, str], machine: Machine) -> WorkersConfig:
    visible = entries(environ)
    gpus = _gpus(settings, visible)
    if gpus is not None:
        visible = gpus
    nproc = _nproc(settings, visible, environ, machine)
    if settings["virtual-local-rank"] and visible and len(visible) < nproc:
        raise UsageError(
            f"{settings.spelled('virtual-local-rank')} gives every rank a GPU of its own, but only {len(visible)} "
            f"({','.join(visible)}) are visible for {nproc} ranks: lower --nproc-per-node"
        )
    return WorkersConfig(
        nproc=nproc,
        role=settings["role"],
        virtual_local_rank=settings["virtual-local-rank"],
        gpus=gpus,
        numa_binding=settings["numa-binding"],
        omp_threads=_omp_threads(settings, nproc, environ, machine),
    )


def _gpus(settings: Settings, visible: Sequence[str] | None) -> tuple[str, ...] | None:
    if settings["gpus"] is None:
        return None
    try:
        narrowed = narrow(visible, settings["gpus"])
    except ValueError as error:
        raise settings.error("gpus", str(error)) from None
    settings.derive("gpus", narrowed, ",".join(narrowed), f"{VISIBLE} of the ranks")
    return narrowed


def _nproc(settings: Settings, visible: Sequence[str] | None, environ: Mapping[str, str], machine: Machine) -> int:
    wanted: int | str = settings["nproc-per-node"]
    if isinstance(wanted, int):
        return wanted
    count, what = _count(wanted, visible, environ, machine)
    if count == 0:
        raise settings.error("nproc-per-node", f"found no {what} on this node: give a number, or auto")
    settings.derive("nproc-per-node", count, str(count), f"{wanted}, and this node has {count} {what}s")
    return count


def _count(wanted: str, visible: Sequence[str] | None, environ: Mapping[str, str], machine: Machine) -> tuple[int, str]:
    if wanted in {"gpu", "auto"}:
        count = machine.count_gpus(visible)
        if count or wanted == "gpu":
            return count, "visible GPU"
    if wanted in {"xpu", "auto"}:
        count = machine.count_xpus(environ)
        if count or wanted == "xpu":
            return count, "XPU"
    return len(machine.cpus), "usable CPU"


def _omp_threads(settings: Settings, nproc: int, environ: Mapping[str, str], machine: Machine) -> int | None:
    if "OMP_NUM_THREADS" in environ:
        if settings.is_given("omp-threads"):
            settings.notes.append(f"OMP_NUM_THREADS={environ['OMP_NUM_THREADS']} is kept; --omp-threads has no effect")
        settings.derive("omp-threads", None, environ["OMP_NUM_THREADS"], "OMP_NUM_THREADS is set")
        return None
    wanted: int | str | None = settings["omp-threads"]
    if isinstance(wanted, int):
        return wanted
    if wanted == "auto":
        threads = max(1, len(machine.cpus) // nproc)
        settings.derive("omp-threads", threads, str(threads), f"{len(machine.cpus)} CPUs for {nproc} ranks")
        return threads
    if nproc == 1:
        return None
    settings.derive("omp-threads", 1, "1", "several ranks share the CPUs")
    settings.infos.append("OMP_NUM_THREADS is set to 1 for each rank; --omp-threads auto shares the CPUs out instead")
    return 1


def _restarts(settings: Settings) -> RestartConfig:
    both = settings["retry-exit-codes"] & settings["fatal-exit-codes"]
    if both:
        raise UsageError(f"exit code {min(both)} is in --retry-exit-codes and in --fatal-exit-codes: leave one out")
    return RestartConfig(
        max_restarts=settings["max-restarts"],
        max_no_progress=settings["max-no-progress"],
        budget=settings["restart-budget"],
        retry_exit_codes=settings["retry-exit-codes"],
        fatal_exit_codes=settings["fatal-exit-codes"],
    )


def _checkpoints(settings: Settings) -> CheckpointConfig:
    config = CheckpointConfig(
        directory=_folder(settings, "checkpoint-dir"),
        format=settings["checkpoint-format"],
        pattern=settings["checkpoint-pattern"],
        validator=settings["checkpoint-validator"],
        shared_storage=settings["checkpoint-storage"] == "shared",
    )
    if config.directory is not None:
        from ftlaunch.launcher.checkpoints import child

        try:
            child.check(config)
        except ValueError as error:
            raise UsageError(str(error)) from None
    return config


def _stop(settings: Settings) -> StopConfig:
    return StopConfig(
        kill_grace_s=settings["kill-grace"],
        checkpoint_grace_s=settings["checkpoint-grace"],
        shutdown_timeout_s=settings["shutdown-timeout"],
        unkillable_timeout_s=settings["unkillable-timeout"],
        signals=settings["signals-to-handle"],
        preempt_signals=settings["preempt-signal"] or (),
        group_scope=settings["signal-scope"] == "group",
    )


def _heartbeat(settings: Settings) -> HeartbeatConfig:
    return HeartbeatConfig(
        init_timeout_s=settings["init-timeout"],
        hang_timeout_s=settings["hang-timeout"],
        section_timeouts_s=dict(settings["section-timeout"]),
        safety_factor=settings["hang-safety-factor"],
        floor_s=settings["hang-floor"],
        dstate_timeout_s=settings["dstate-timeout"],
        exit_barrier_timeout_s=settings["exit-barrier-timeout"],
        ignore_stopped=settings["ignore-stopped"],
        enabled=settings["heartbeat"],
    )


def _standby(settings: Settings) -> StandbyConfig:
    return StandbyConfig(
        StandbyMode(settings["standby"]),
        settings["standby-preload"],
        settings["standby-exclude"],
        settings["standby-cuda"],
    )


def _logs(settings: Settings, environ: Mapping[str, str], nproc: int) -> LogConfig:
    shown = settings["local-ranks-filter"] or frozenset()
    for name, named in (
        ("redirects", settings["redirects"]),
        ("tee", settings["tee"]),
        ("local-ranks-filter", shown),
    ):
        _note_missing_ranks(settings, name, named, nproc)
    return LogConfig(
        run_dir=_folder(settings, "run-dir"),
        log_dir=_folder(settings, "log-dir"),
        redirects=settings["redirects"],
        tees=settings["tee"],
        local_ranks_filter=shown,
        stdout_filters=settings["duplicate-stdout-filters"],
        stderr_filters=settings["duplicate-stderr-filters"],
        prefix_template=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        level=settings["log-level"],
        event_log_handler=settings["event-log-handler"],
        max_file_bytes=settings["log-file-limit"],
    )


def _node(settings: Settings) -> NodeConfig:
    path: str = settings["termination-log"] or ""
    if os.path.isdir(path):
        raise UsageError(f"{settings.spelled('termination-log')} must be a file, not {show(path)}")
    if settings.is_given("health-check-timeout") and not settings["health-check"]:
        settings.notes.append("--health-check-timeout has no effect without --health-check")
    return NodeConfig(
        gpu_reclaim_timeout_s=settings["gpu-reclaim-timeout"],
        gpu_reclaim_tolerance=settings["gpu-reclaim-tolerance"],
        health_check=settings["health-check"],
        health_check_timeout_s=settings["health-check-timeout"],
        min_free_disk=settings["min-free-disk"],
        clean_shm=settings["clean-shm"],
        termination_log=path or None,
    )


def _metrics(settings: Settings) -> MetricsConfig:
    port, health_port = settings["metrics-port"], settings["health-port"]
    if port is not None and port == health_port and port != 0:
        raise UsageError(f"--metrics-port and --health-port are both {port}: give each a port of its own")
    if settings.is_given("metrics-address") and port is None and health_port is None:
        settings.notes.append("--metrics-address has no effect without --metrics-port or --health-port")
    return MetricsConfig(port, health_port, settings["metrics-address"] or MetricsConfig.address)


def _note_missing_ranks(settings: Settings, name: str, named: Collection[int | None], nproc: int) -> None:
    missing = sorted(rank for rank in named if rank is not None and rank >= nproc)
    if missing:
        settings.notes.append(
            f"{settings.spelled(name)} names local rank {missing[0]}, but this node has 0 to {nproc - 1}"
        )


def _folder(settings: Settings, name: str) -> str | None:
    path: str = settings[name] or ""
    if os.path.exists(path) and not os.path.isdir(path) and path != os.devnull:
        raise UsageError(
            f"{settings.spelled(name)} must be a folder, or a path where one can be made, not {show(path)}"
        )
    return path or None


def _note_without_effect(settings: Settings, environ: Mapping[str, str]) -> None:
    if settings["logs-specs"]:
        settings.notes.append("--logs-specs has no effect: ftlaunch lays logs out itself, below --log-dir")
    if settings["event-log-handler"] not in {"null", "console"}:
        settings.notes.append(
            f"{settings.spelled('event-log-handler')} {show(settings['event-log-handler'])} has no effect: "
            "ftlaunch knows console and null, and writes all events to the run folder"
        )
    if environ.get("TORCHELASTIC_ENABLE_FILE_TIMER"):
        settings.notes.append("TORCHELASTIC_ENABLE_FILE_TIMER has no effect: use ftlaunch's own stall detection")
