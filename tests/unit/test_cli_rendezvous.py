"""How nodes meet: what torchrun would run on one node is local; the rest is resolved in full."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.launcher.cli import command_line
from ftlaunch.launcher.config import RendezvousConfig
from ftlaunch.launcher.errors import UsageError
from ftlaunch.rendezvous.common import conf as conf_keys
from support.machines import machine

C10D = ["--rdzv-backend", "c10d"]
ETCD = ["--rdzv-backend", "etcd"]
KUBEFLOW = {
    "PET_NNODES": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29400",
}


def parse(arguments: list[str], environ: dict[str, str] | None = None) -> command_line.Parsed:
    return command_line.parse([*arguments, "-m", "train"], environ or {}, machine())


def rendezvous(arguments: list[str], environ: dict[str, str] | None = None) -> RendezvousConfig:
    return parse(arguments, environ).config.rendezvous


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ([], {}, {"job_id": "", "master_port": None, "master_addr": None}),
        (["--standalone"], {}, {"job_id": "", "master_port": None}),
        ([], {"PET_STANDALONE": "true"}, {}),
        (["--standalone", "--rdzv-id", "x", *ETCD, "--rdzv-endpoint", "e:1"], {}, {"job_id": "", "endpoint": ""}),
        (["--standalone", "--nnodes", "1:4"], {}, {"max_nodes": 1}),
        (["--standalone", "--master-port", "29511"], {}, {"master_port": None}),
        (["--rdzv-id", "mine"], {}, {"job_id": "mine"}),
        (["--rdzv-id", "none"], {}, {"job_id": ""}),
        (["--master-port", "29511"], {}, {"master_port": 29511}),
        (["--master-port", "0"], {}, {"master_port": None}),
        (["--rdzv-endpoint", "localhost:29522"], {}, {"master_port": 29522, "master_addr": "localhost"}),
        (["--rdzv-endpoint", "localhost"], {}, {"master_port": None}),
        (["--master-addr", "10.0.0.7"], {}, {"master_addr": "10.0.0.7"}),
        (["--master-addr", "[::1]"], {}, {"master_addr": "::1"}),
        (["--master-addr", "10.9.9.9"], {}, {"master_addr": None}),
        ([], KUBEFLOW, {"master_port": 29400, "master_addr": None, "node_rank": 0}),
        ([*C10D, "--rdzv-endpoint", "localhost:0"], {}, {"master_port": None}),
        ([*C10D, "--rdzv-endpoint", "node7:29400", "--rdzv-id", "j"], {}, {"job_id": "j", "master_port": None}),
        (C10D, {}, {}),
        (["--rdzv-backend", "local"], {}, {}),
        ([], {"SLURM_NODEID": "3"}, {"node_rank": None}),
        ([], {"JOB_COMPLETION_INDEX": "2"}, {"node_rank": None}),
    ],
)  # fmt: skip
def test_one_node_is_local(arguments: list[str], environ: dict[str, str], expected: dict[str, Any]) -> None:
    parsed = parse(arguments, environ)
    found = parsed.config.rendezvous
    assert (found.backend, found.min_nodes, found.max_nodes, found.endpoint) == ("local", 1, 1, "")
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (
            ["--nnodes", "2", "--master-addr", "head", "--node-rank", "1"],
            {},
            {"backend": "static", "endpoint": "head:29500", "min_nodes": 2, "max_nodes": 2, "node_rank": 1,
             "master_addr": "head", "master_port": 29500},
        ),
        (["--nnodes", "2"], {}, {"backend": "static", "endpoint": "127.0.0.1:29500", "node_rank": 0}),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "h:7", "--master-addr", "other", "--master-port", "9"],
            {},
            {"endpoint": "h:7", "master_addr": "h", "master_port": 7},
        ),
        (["--nnodes", "2:3"], {}, {"backend": "static", "min_nodes": 3, "max_nodes": 3}),
        ([], {**KUBEFLOW, "PET_NNODES": "2"}, {"backend": "static", "endpoint": "job-node-0-0.job:29400"}),
        (["--nnodes", "2"], {"SLURM_NODEID": "1"}, {"node_rank": 1}),
        (["--nnodes", "2"], {"JOB_COMPLETION_INDEX": "1"}, {"node_rank": 1}),
        (["--nnodes", "2"], {"SLURM_NODEID": "1", "PET_NODE_RANK": "0"}, {"node_rank": 0}),
        (
            ["--nnodes", "2:4", *C10D, "--rdzv-endpoint", "head"],
            {},
            {"backend": "c10d", "endpoint": "head:29400", "min_nodes": 2, "max_nodes": 4, "node_rank": None},
        ),
        ([*C10D, "--rdzv-endpoint", "elsewhere:1"], {}, {"backend": "c10d", "endpoint": "elsewhere:1", "max_nodes": 1}),
        (["--nnodes", "2", *C10D, "--rdzv-endpoint", "[fe80::1]:9"], {}, {"endpoint": "[fe80::1]:9"}),
        (["--nnodes", "2", *C10D, "--rdzv-endpoint", "fe80::1"], {}, {"endpoint": "[fe80::1]:29400"}),
        (
            ["--nnodes", "2", *ETCD, "--rdzv-endpoint", "a:1,https://b, [::1]", "--rdzv-id", "j"],
            {},
            {"backend": "etcd", "endpoint": "a:1,https://b:2379,[::1]:2379", "job_id": "j"},
        ),
        (["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "localhost"], {}, {"backend": "etcd", "max_nodes": 1}),
        (
            ["--nnodes", "2", *ETCD, "--rdzv-endpoint", "e", "--rdzv-conf", "local_addr=10.1.1.1"],
            {},
            {"local_addr": "10.1.1.1", "job_id": "none"},
        ),
    ],
)  # fmt: skip
def test_several_nodes(arguments: list[str], environ: dict[str, str], expected: dict[str, Any]) -> None:
    parsed = parse(arguments, environ)
    found = parsed.config.rendezvous
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.backend != "local"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--standalone", "--nnodes", "2"], "--standalone runs on one node, but --nnodes asks for 2"),
        (["--rdzv-backend", "local", "--nnodes", "2:4"], "local rendezvous is for one node, but --nnodes asks for 2"),
        (["--nnodes", "2", *C10D], "--rdzv-backend c10d with --nnodes 2:2 needs --rdzv-endpoint HOST[:PORT]"),
        (["--nnodes", "2", *C10D, "--rdzv-endpoint", "h:0"], "must name a port that all nodes know, not 'h:0'"),
        (["--nnodes", "2", *C10D, "--rdzv-endpoint", "a,b"], "must be one HOST[:PORT] for --rdzv-backend c10d"),
        (["--nnodes", "2", "--rdzv-endpoint", "http://a"], "must be one HOST[:PORT] for --rdzv-backend static"),
        (ETCD, "--rdzv-backend etcd needs --rdzv-endpoint HOST[:PORT]"),
        (["--nnodes", "2", "--node-rank", "2"], "--node-rank must be from 0 to 1 with 2 nodes, not '2'"),
        (["--nnodes", "2", "--master-port", "0"], "port 0 is a different port on every node"),
    ],
)  # fmt: skip
def test_what_cannot_work(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "h", "--rdzv-id", "j"], "v3 API only"),
        ([*ETCD, "--rdzv-endpoint", "h"], "no --rdzv-id"),
        (["--nnodes", "2:3"], "waits for all 3 nodes"),
        (["--standalone", "--rdzv-endpoint", "h:1"], "--rdzv-endpoint has no effect with --standalone"),
        (["--master-addr", "10.9.9.9"], "this machine does not have the address 10.9.9.9"),
    ],
)
def test_notes(arguments: list[str], note: str) -> None:
    assert [line for line in parse(arguments).notes if note in line]


def test_kubeflow_on_one_node_says_nothing_about_it() -> None:
    assert [note for note in parse([], KUBEFLOW).notes if "OMP_NUM_THREADS" not in note] == []


def test_the_inherited_rank_variables_are_not_read() -> None:
    inherited = {"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "5", "MASTER_ADDR": "far", "MASTER_PORT": "1"}
    assert rendezvous([], inherited) == rendezvous([])


@pytest.mark.parametrize("key", sorted(conf_keys.NUMERIC | conf_keys.TEXTUAL))
def test_every_key_of_a_backend_passes_without_a_note(key: str) -> None:
    parsed = parse([*ETCD, "--rdzv-endpoint", "h", "--rdzv-id", "x", "--rdzv-conf", f"{key}=1", "--nnodes", "2"])
    assert [note for note in parsed.notes if "unknown key" in note] == []
