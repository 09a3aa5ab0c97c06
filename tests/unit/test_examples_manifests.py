"""The manifests for Kubernetes and the batch script for Slurm say what ftlaunch understands, and fit together."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path, PurePath

import pytest

from ftlaunch.launcher import meeting
from ftlaunch.launcher.cli import command_line
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.rendezvous.etcd.backend import EtcdRendezvous
from support.machines import machine
from support.manifests import EXAMPLES, KUBERNETES, SCRIPT, Trainer, documents, files, trainers

TRAINERS = trainers()
KUBELET_MARGIN_S = 5
SLURM = (EXAMPLES / "slurm" / "train.sbatch").read_text()
each_trainer = pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)


def parsed(trainer: Trainer, folder: Path) -> command_line.Parsed:
    script = folder / SCRIPT
    script.touch()
    program, *arguments = trainer.argv
    assert program == "ftlaunch"
    return command_line.parse(
        [str(script) if word == SCRIPT else word for word in arguments], trainer.environ, machine(gpus=8)
    )


def config_of(trainer: Trainer, folder: Path) -> Config:
    return parsed(trainer, folder).config


def test_there_is_a_manifest_for_each_kind_of_job() -> None:
    assert [trainer.name for trainer in TRAINERS] == ["indexed-job.yaml", "jobset.yaml", "trainjob.yaml"]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_manifests_are_yaml_with_kind_and_name(path: Path) -> None:
    for document in documents(path):
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(document)
        assert re.fullmatch(r"[a-z][a-z0-9-]*", document["metadata"]["name"])


@each_trainer
def test_command_lines_are_accepted_as_they_are(trainer: Trainer, tmp_path: Path) -> None:
    result = parsed(trainer, tmp_path)
    assert [note for note in result.notes if "OMP_NUM_THREADS" not in note] == []
    config = result.config
    assert (config.rendezvous.backend, config.rendezvous.min_nodes, config.rendezvous.node_rank) == ("etcd", 4, 1)
    assert config.workers.nproc == 8
    assert "$(" not in " ".join(trainer.argv)


@each_trainer
def test_settings_of_the_rendezvous_are_known_to_it(trainer: Trainer, tmp_path: Path) -> None:
    made = meeting.make_rendezvous(config_of(trainer, tmp_path), lambda *_: {})
    assert isinstance(made, EtcdRendezvous)


@each_trainer
def test_pods_have_longer_to_end_than_ranks_have(trainer: Trainer, tmp_path: Path) -> None:
    shutdown_s = config_of(trainer, tmp_path).stop.shutdown_timeout_s
    assert trainer.pod["terminationGracePeriodSeconds"] >= shutdown_s + KUBELET_MARGIN_S


@each_trainer
def test_a_pod_that_was_told_to_go_never_counts_as_completed(trainer: Trainer, tmp_path: Path) -> None:
    assert signal.SIGTERM in config_of(trainer, tmp_path).stop.preempt_signals


@each_trainer
def test_only_hopeless_codes_end_the_job(trainer: Trainer) -> None:
    rules = trainer.job["podFailurePolicy"]["rules"]
    codes = {rule["action"]: set(rule["onExitCodes"]["values"]) for rule in rules if "onExitCodes" in rule}
    assert codes["FailJob"] == {ExitCode.USAGE, ExitCode.NO_PROGRESS}
    assert set().union(*codes.values()) <= set(ExitCode)
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {
        trainer.container["name"]
    }
    assert trainer.pod["restartPolicy"] == "Never"


@each_trainer
def test_every_path_of_the_command_line_is_on_a_volume(trainer: Trainer, tmp_path: Path) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in trainer.container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in trainer.pod["volumes"]}
    paths = [path for word in trainer.argv for path in re.findall(r"=(/[\w./-]+)", word)]
    assert len(paths) >= 5
    assert [path for path in paths if not any(PurePath(path).is_relative_to(top) for top in mounts.values())] == []
    if trainer.container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        assert "/tmp" in mounts.values()


@each_trainer
def test_endpoints_are_the_members_of_the_etcd_manifest(trainer: Trainer) -> None:
    (etcd,) = [document for document in documents(KUBERNETES / "etcd.yaml") if document["kind"] == "StatefulSet"]
    name, service, replicas = etcd["metadata"]["name"], etcd["spec"]["serviceName"], etcd["spec"]["replicas"]
    (given,) = [word for word in trainer.argv if word.startswith("--rdzv-endpoint=")]
    members = [f"{name}-{number}.{service}" for number in range(replicas)]
    assert given == "--rdzv-endpoint=" + ",".join(f"https://{member}:2379" for member in members)
    (command,) = [container["command"] for container in etcd["spec"]["template"]["spec"]["containers"]]
    cluster = ",".join(f"{member.partition('.')[0]}=https://{member}:2380" for member in members)
    assert f"--initial-cluster={cluster}" in command


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_certificates_are_good_for_every_member_and_for_agents(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    done = subprocess.run([KUBERNETES / "certificates", folder, "ml"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kubectl -n ml create secret generic") == 2
    verify = ["openssl", "verify", "-CAfile", str(folder / "ca.crt")]
    for member in (f"etcd-{number}.etcd{zone}" for number in range(3) for zone in ("", ".ml.svc.cluster.local")):
        for purpose in ("sslserver", "sslclient"):
            check = [*verify, "-purpose", purpose, "-verify_hostname", member, folder / "etcd-server" / "tls.crt"]
            assert subprocess.run(check, capture_output=True).returncode == 0, member
    client = folder / "etcd-client" / "tls.crt"
    assert subprocess.run([*verify, "-purpose", "sslclient", client], capture_output=True).returncode == 0
    assert subprocess.run([*verify, "-purpose", "sslserver", client], capture_output=True).returncode != 0
    assert [path.name for path in folder.rglob("*.key") if path.stat().st_mode & 0o077] == []


def test_the_image_runs_ftlaunch_without_a_shell() -> None:
    lines = (KUBERNETES / "Dockerfile").read_text().splitlines()
    starts = [line.split(maxsplit=1)[1] for line in lines if line.startswith(("ENTRYPOINT", "CMD"))]
    assert [json.loads(start) for start in starts] == [["ftlaunch"]]


def test_the_batch_script_leaves_ranks_less_time_than_slurm_does() -> None:
    warned_s = re.search(r"^#SBATCH --signal=B:USR1@(\d+)$", SLURM, re.MULTILINE)
    given_s = re.search(r"--shutdown-timeout=(\d+)", SLURM)
    assert warned_s is not None and given_s is not None
    assert int(given_s[1]) + KUBELET_MARGIN_S < int(warned_s[1])
    assert re.search(r"^#SBATCH --ntasks-per-node=1$", SLURM, re.MULTILINE)


@pytest.mark.parametrize("folder", ["kubernetes", "slurm"])
def test_pages_name_files_that_are_there(folder: str) -> None:
    page = EXAMPLES / folder / "README.md"
    named = re.findall(r"`([a-z-]+(?:\.yaml|\.sbatch)|Dockerfile|certificates)`", page.read_text())
    assert {path.name for path in page.parent.iterdir()} - {"README.md"} == set(named)
