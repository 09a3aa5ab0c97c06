"""The manifests in examples/kubernetes as data, with the command lines that Kubernetes would make of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
SCRIPT = "train.py"
# What Kubeflow Trainer sets (for four nodes of eight ranks), and what every pod of an Indexed Job has.
KUBEFLOW = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}
INDEXED = {"JOB_COMPLETION_INDEX": "1"}
Document = dict[str, Any]


@dataclass(frozen=True)
class Trainer:
    """A container that runs ftlaunch. ``job`` is the spec of the Job around it."""

    name: str
    container: Document
    pod: Document
    job: Document
    args: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def argv(self) -> list[str]:
        """What the container executes, ``$(NAME)`` filled in; a name that it does not define stays as it is."""
        defined = {entry["name"]: f"some-{entry['name'].lower()}" for entry in self.container.get("env", ())}
        defined["POD_IP"] = "10.0.0.7"
        return [
            re.sub(r"\$\((\w+)\)", lambda found: defined.get(found[1], found[0]), word)
            for word in (*self.container["command"], *self.args)
        ]


def documents(path: Path) -> list[Document]:
    """All documents of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def files() -> list[Path]:
    """All manifests."""
    return sorted(KUBERNETES.glob("*.yaml"))


def trainers() -> list[Trainer]:
    """Every container of ours in every manifest."""
    return [trainer for path in files() for trainer in _trainers(path)]


def _trainers(path: Path) -> Iterator[Trainer]:
    found = documents(path)
    jobs = [document["spec"]["trainer"] for document in found if document["kind"] == "TrainJob"]
    for document in found:
        for job in _jobs(document):
            pod = job["template"]["spec"]
            for container in pod["containers"]:
                if "ftlaunch" in container["command"]:
                    args = jobs[0]["args"] if jobs else container["args"]
                    environ = {**INDEXED, **(KUBEFLOW if jobs else {})}
                    yield Trainer(path.name, container, pod, job, tuple(args), environ)


def _jobs(node: Any) -> Iterator[Document]:
    """Every Job's spec, however deep: it is what has a policy for failed pods."""
    if isinstance(node, dict):
        if "podFailurePolicy" in node:
            yield node
        for value in node.values():
            yield from _jobs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _jobs(value)
