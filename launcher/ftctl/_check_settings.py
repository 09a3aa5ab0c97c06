"""Settings that defeat their own purpose: detection that never detects, restarts that never happen. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ftlaunch.launcher.config import CommandKind, Config, StandbyMode
from ftlaunch.launcher.ftctl._finding import Finding, note, ok, warning

_LONG_S = 3600.0
_DAY_S = 86400.0
_LARGE_FACTOR = 100.0


def check_settings(config: Config) -> Iterator[Finding]:
    """What the configuration alone tells."""
    inert = [*_stalls(config), *_restarts(config)]
    yield from inert
    if not inert:
        yield ok("detection", "deaths, stalls and stopped ranks are all acted on")
    yield from _resume(config)
    yield from _environment(config)


def _stalls(config: Config) -> Iterator[Finding]:
    heartbeat = config.heartbeat
    if not heartbeat.enabled:
        yield warning("stalls", "--heartbeat off: a rank that hangs is never noticed, only deaths are")
        return
    if config.command.kind is CommandKind.BINARY:
        yield note(
            "stalls",
            "--no-python: nothing is hooked; a hang is only noticed if the program calls ftlaunch.heartbeat.beat()",
        )
    yield from _timeouts(config)
    if heartbeat.ignore_stopped:
        yield warning("stalls", "--ignore-stopped: a rank that somebody stops halts the job for good")
    if heartbeat.dstate_timeout_s == 0:
        yield note("stalls", "--dstate-timeout 0: dead storage is only noticed by silence")


def _timeouts(config: Config) -> Iterator[Finding]:
    heartbeat = config.heartbeat
    for option, seconds in (("--init-timeout", heartbeat.init_timeout_s), ("--hang-timeout", heartbeat.hang_timeout_s)):
        if not 0 < seconds < math.inf:
            yield warning("stalls", f"{option} {seconds:g}: no limit, such a hang is never noticed")
        elif seconds > _DAY_S:
            yield warning("stalls", f"{option} {seconds:g} s is more than a day: a hang costs that long")
    if _DAY_S >= heartbeat.hang_timeout_s > _LONG_S:
        yield note("stalls", f"--hang-timeout {heartbeat.hang_timeout_s:g} s holds until the job's rhythm is known")
    for name, seconds in sorted(heartbeat.section_timeouts_s.items()):
        if seconds > _DAY_S:
            yield warning("stalls", f"--section-timeout {name}={seconds:g} is more than a day")
    if heartbeat.floor_s > heartbeat.hang_timeout_s > 0:
        yield warning(
            "stalls",
            f"--hang-floor {heartbeat.floor_s:g} s is above --hang-timeout {heartbeat.hang_timeout_s:g} s: "
            "nothing that is learnt can shorten the limit",
        )
    if heartbeat.safety_factor > _LARGE_FACTOR:
        yield warning("stalls", f"--hang-safety-factor {heartbeat.safety_factor:g} makes learnt limits useless")


def _restarts(config: Config) -> Iterator[Finding]:
    restarts = config.restarts
    if restarts.max_restarts == 0:
        yield warning("restarts", "--max-restarts 0: the first failure ends the job")
    if restarts.fatal_exit_codes >= set(range(1, 256)):
        yield warning("restarts", "--fatal-exit-codes holds every code: no failure is followed by a restart")
    if config.stop.shutdown_timeout_s < config.stop.kill_grace_s:
        yield note(
            "restarts", "--shutdown-timeout is shorter than --kill-grace: ranks get less time to save at the end"
        )
    if config.standby.mode is StandbyMode.OFF:
        yield note("standby", "--standby off: every restart pays for all imports again")


def _resume(config: Config) -> Iterator[Finding]:
    placeholder = any("{resume}" in argument for argument in config.command.args)
    if placeholder and config.checkpoints.directory is None:
        yield warning("resume", "{resume} in the script's arguments stays as it is without --checkpoint-dir")
    if config.checkpoints.directory is None:
        yield note("resume", "no --checkpoint-dir: the script itself must find what to resume from")


def _environment(config: Config) -> Iterator[Finding]:
    environment = config.environment
    if environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0":
        yield warning(
            "environment", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0: ranks wait for ever for one that has died, until killed"
        )
    if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield note("environment", "CUDA_LAUNCH_BLOCKING=1 slows every step down")
    if "FTLAUNCH_SOCKET" in environment:
        yield warning("environment", "FTLAUNCH_SOCKET is set: this shell belongs to a rank of another job")
