"""Two hosts and a cable that is pulled: who is cut off has stopped before the others write anything.

The hosts are network namespaces; etcd is on neither of them. Two rounds here;
PARTITION_ROUNDS=50 ./scripts/test tests/process/test_job_partition.py is the long run (about eight minutes).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import hosts
from support.hosts import Hosts
from support.jobs import Job, Launcher
from support.waiting import wait_until

ROUNDS = int(os.environ.get("PARTITION_ROUNDS", "2"))
NODE_TIMEOUT_S = 3
BODY = """
import os, sys, time
name, generation = sys.argv[1], os.environ["FTLAUNCH_GENERATION"]
with open(name + "." + generation + "." + os.environ["GROUP_RANK"] + "." + os.environ["WORLD_SIZE"], "a") as log:
    while not os.path.exists(sys.argv[2]):
        log.write(f"{time.monotonic()}\\n")
        log.flush()
        time.sleep(0.005)
"""

pytestmark = [
    pytest.mark.timeout(120 + 20 * ROUNDS),
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing()),
]


@pytest.fixture
def network() -> Iterator[Hosts]:
    with Hosts("a", "b") as network:
        yield network


@pytest.fixture
def endpoint(network: Hosts, tmp_path: Path) -> Iterator[str]:
    with network.etcd(tmp_path) as endpoint:
        yield endpoint


def beats(folder: Path) -> dict[int, dict[str, tuple[float, float]]]:
    """generation -> host -> when its rank first and last wrote."""
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for path in folder.glob("log-?.*"):
        lines = path.read_text().split("\n")[:-1]
        if lines:
            host, generation = path.name[4], int(path.name.split(".")[1])
            found.setdefault(generation, {})[host] = (float(lines[0]), float(lines[-1]))
    return found


def test_who_is_cut_off_has_stopped_before_the_others_go_on(
    ftlaunch: Launcher, network: Hosts, endpoint: str, tmp_path: Path
) -> None:
    script, end = tmp_path / "train.py", tmp_path / "end"
    script.write_text(BODY)
    dice = random.Random(20261129)
    conf = f"node_timeout={NODE_TIMEOUT_S},last_call_timeout=1,call_timeout=1"

    def start(host: str) -> Job:
        return ftlaunch(
            *("--allow-multiple-agents-per-node", "--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint),
            *("--rdzv-id", "cable", "--rdzv-conf", conf, "--nnodes", "1:2", script, tmp_path / f"log-{host}", end),
            prefix=network.on(host),
        )

    agents = {host: start(host) for host in "ab"}

    for number in range(ROUNDS):
        both = wait_for_both(tmp_path, number)
        let_run(tmp_path, dice.random())
        network.cable("b", "down")
        wait_for_one(tmp_path, both)
        network.cable("b", "up")
    wait_for_both(tmp_path, ROUNDS)
    end.touch()
    assert {host: agent.wait(60) for host, agent in agents.items()} == {"a": 0, "b": 0}
    kinds = [(each.get("diagnosis") or {}).get("kind") for agent in agents.values() for each in agent.incidents()]
    assert "agent_stood_still" not in kinds, "an agent that acts by itself is left alone by its guardian"
    found = beats(tmp_path)
    for generation in sorted(found):
        later = [first for g, hosts_ in found.items() if g > generation for first, _ in hosts_.values()]
        last = max(last for _, last in found[generation].values())
        assert not later or last < min(later), f"generation {generation} wrote after the next had begun"


def test_a_cut_while_the_job_ends_costs_a_generation_and_not_the_job(
    ftlaunch: Launcher, network: Hosts, endpoint: str, tmp_path: Path
) -> None:
    script, end = tmp_path / "train.py", tmp_path / "end"
    script.write_text(BODY)

    def start(host: str) -> Job:
        return ftlaunch(
            *("--allow-multiple-agents-per-node", "--rdzv-backend", "etcd", "--rdzv-endpoint", endpoint),
            *("--rdzv-id", "cable", "--rdzv-conf", f"node_timeout={NODE_TIMEOUT_S},call_timeout=1", "--nnodes", "2"),
            *(script, tmp_path / f"log-{host}", end),
            prefix=network.on(host),
        )

    a, b = start("a"), start("b")
    wait_for_both(tmp_path, 0)
    network.cable("b", "down")
    end.touch()
    wait_until(lambda: a.events("job_ending") and b.events("job_ending"), 10, "all ranks have succeeded")
    wait_until(lambda: a.events("failure_detected"), 30, "the host that is cut off is given up")
    assert b.process.poll() is None
    network.cable("b", "up")
    assert [job.wait(60) for job in (a, b)] == [0, 0]
    for job in (a, b):
        assert [event["generation"] for event in job.events("job_ending")] == [0, 1]


def wait_for_both(folder: Path, rounds: int) -> int:
    """Until both hosts have run together once more than ``rounds`` times; returns that generation."""

    def together() -> list[int]:
        return [generation for generation, found in beats(folder).items() if len(found) == 2]

    wait_until(lambda: len(together()) > rounds, 60, f"both hosts run, round {rounds}")
    return max(together())


def wait_for_one(folder: Path, before: int) -> None:
    """Until the first host runs in a later generation."""

    def goes_on() -> bool:
        return any(generation > before and "a" in found for generation, found in beats(folder).items())

    wait_until(goes_on, 30, "the host that can reach etcd goes on alone")


def let_run(folder: Path, seconds: float) -> None:
    """Until the newest rank has written for so long."""

    def written() -> bool:
        newest = max(beats(folder).items())[1]
        return all(last - first >= seconds for first, last in newest.values())

    wait_until(written, 30)
