"""``ftctl check``: what the settings alone tell."""

from __future__ import annotations

import pytest

from ftlaunch.launcher.config import (
    CheckpointConfig,
    CommandConfig,
    CommandKind,
    Config,
    HeartbeatConfig,
    RestartConfig,
    StandbyConfig,
    StandbyMode,
)
from ftlaunch.launcher.ftctl._check_settings import check_settings
from ftlaunch.launcher.ftctl._finding import Level

SCRIPT = CommandConfig(CommandKind.SCRIPT, "train.py")


def warnings(config: Config) -> list[str]:
    return [finding.text for finding in check_settings(config) if finding.level is Level.WARNING]


def test_the_defaults_are_not_inert() -> None:
    findings = list(check_settings(Config(SCRIPT)))
    assert not [finding for finding in findings if finding.level >= Level.WARNING]
    assert any(finding.subject == "detection" for finding in findings)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (Config(SCRIPT, heartbeat=HeartbeatConfig(enabled=False)), "--heartbeat off"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(hang_timeout_s=200000.0)), "--hang-timeout"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(init_timeout_s=200000.0)), "--init-timeout"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(section_timeouts_s={"eval": 200000.0})), "--section-timeout eval"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(floor_s=700.0)), "--hang-floor"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(safety_factor=1000.0)), "--hang-safety-factor"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(ignore_stopped=True)), "--ignore-stopped"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(hang_timeout_s=0.0)), "--hang-timeout 0"),
        (Config(SCRIPT, heartbeat=HeartbeatConfig(init_timeout_s=float("inf"))), "--init-timeout"),
        (Config(SCRIPT, restarts=RestartConfig(max_restarts=0)), "--max-restarts 0"),
        (Config(SCRIPT, restarts=RestartConfig(fatal_exit_codes=frozenset(range(1, 256)))), "--fatal-exit-codes"),
        (Config(CommandConfig(CommandKind.SCRIPT, "t.py", ("--resume={resume}",))), "--checkpoint-dir"),
        (Config(SCRIPT, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}), "ASYNC_ERROR_HANDLING"),
        (Config(SCRIPT, environment={"FTLAUNCH_SOCKET": "/x"}), "FTLAUNCH_SOCKET"),
    ],
)
def test_settings_that_defeat_their_purpose(config: Config, text: str) -> None:
    (found,) = warnings(config)
    assert text in found


def test_notes_on_what_is_less_than_it_could_be() -> None:
    config = Config(
        CommandConfig(CommandKind.BINARY, "prog"),
        heartbeat=HeartbeatConfig(dstate_timeout_s=0.0),
        standby=StandbyConfig(StandbyMode.OFF),
        checkpoints=CheckpointConfig(directory="/ck"),
    )
    notes = [finding.text for finding in check_settings(config) if finding.level is Level.NOTE]
    assert [any(flag in text for text in notes) for flag in ("--no-python", "--dstate-timeout 0", "--standby off")] == [
        *(True, True, True)
    ]
    assert not any("--checkpoint-dir" in text for text in notes)
