"""What is hidden wherever something is written down or shown, and what stays readable."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.launcher.cli import command_line, values
from ftlaunch.launcher.ranks import environment
from ftlaunch.launcher.secrecy import hide, redact
from ftlaunch.rendezvous.etcd.settings import parse_endpoints
from ftlaunch.rendezvous.interface import SettingsError, World
from support.machines import machine

ETCD = ["--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", "h:2379", "--rdzv-id", "x"]


def test_secrets_are_not_recorded() -> None:
    arguments = ["--api-key", "k1", "--wandb_token=k2", "--password", "--verbose", "http://me:k3@host/", "--lr", "3"]
    arguments += ["--tokenizer", "gpt2", "--max-tokens=5"]
    assert redact(arguments) == [
        *("--api-key", "***", "--wandb_token=***", "--password", "--verbose", "http://***@host/", "--lr", "3"),
        *("--tokenizer", "gpt2", "--max-tokens=5"),
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:s3cret@host:2379,https://me:s3:cr@et@other", "https://***@host:2379,https://***@other"),
        ("curl -H 'Authorization: Bearer s3cret' https://h/", "curl -H 'Authorization: Bearer ***' https://h/"),
        ("me:s3cr@et@host:2379,other:2379", "***@host:2379,other:2379"),
        ("scp me@host:/a b@c", "scp me@host:/a b@c"),
        ("API_TOKEN=s3cret check --all", "API_TOKEN=*** check --all"),
        ("timeout=5,password=s3cret,user=me", "timeout=5,password=***,user=me"),
        ("password_file=/etc/pw,lr=1e-4 max_tokens=5", "password_file=/etc/pw,lr=1e-4 max_tokens=5"),
        ("", ""),
    ],
)
def test_secrets_are_hidden_by_their_form(text: str, shown: str) -> None:
    assert hide(text) == shown


def test_a_message_about_a_bad_value_does_not_repeat_its_secret() -> None:
    assert values.show("https://me:s3cret@host") == "'https://***@host'"
    with pytest.raises(SettingsError) as error:
        parse_endpoints("https://me:s3cret@host:2379")
    assert "s3cret" not in str(error.value)


def test_print_config_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*ETCD, "--health-check", "curl -H 'Authorization: Bearer s3cret' h", "--rdzv-conf", "key=/etc/k.pem"]
    with pytest.raises(SystemExit):
        command_line.parse(
            ["--print-config", *arguments, "-m", "train", "--api-key", "s3cret", "--lr=3"], {}, machine()
        )
    text = capsys.readouterr().out
    assert "s3cret" not in text and "--lr=3" in text and "key=/etc/k.pem" in text


def parse(environ: dict[str, str], *arguments: str) -> Any:
    return command_line.parse([*arguments, "-m", "train"], environ, machine()).config


def test_what_only_the_rendezvous_needs_is_inherited_by_no_process() -> None:
    environ = {"ETCDCTL_USER": "me:s3cret", "ETCDCTL_PASSWORD": "s3cret", "ETCDCTL_CACERT": "/ca", "HOME": "/h"}
    config = parse(environ, *ETCD)
    world = World(0, (), 0, 0, 1, "m", 1, 0, "x")
    for found in (environment.worker_environment(config, world, 0, extra={}), environment.node_environment(config)):
        assert "s3cret" not in " ".join(found.values()) and found["ETCDCTL_CACERT"] == "/ca" and found["HOME"] == "/h"
    assert dict(config.rendezvous.secrets) == {"ETCDCTL_USER": "me:s3cret", "ETCDCTL_PASSWORD": "s3cret"}
    assert "s3cret" not in repr(config)


def test_a_job_without_etcd_leaves_the_variables_to_the_script() -> None:
    environ = {"ETCDCTL_PASSWORD": "of the script"}
    assert parse(environ).environment == environ and not parse(environ).rendezvous.secrets
