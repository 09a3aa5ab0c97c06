"""Many agents of one job, without ranks, on one etcd: what does it cost to agree, and to agree again after a failure?

``agents.py TOTAL ENDPOINT ETCD_PID ROUNDS`` lets TOTAL agents form a generation, then, ROUNDS times, one tell of
a failure, and writes what each round took to ``$DRILL_OUT/agents.json``. Each agent is the product's own rendezvous
with a connection, a lease, watches and neighbours of its own, as in real life; a hundred of them share a process.

Messages are counted by etcd itself (gRPC messages it received and sent, renewals of leases left out), writes by its
revision. Times are from the start or the failure until the last agent knows the new world.
"""

import asyncio
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from ftlaunch.rendezvous.common.iothread import IoThread
from ftlaunch.rendezvous.common.node import NodeDescription
from ftlaunch.rendezvous.etcd import EtcdRendezvous, EtcdSettings
from ftlaunch.rendezvous.etcd.settings import parse_endpoints
from ftlaunch.rendezvous.interface import Joining, PeerFailed, WorldAgreed

PER_PROCESS = 100
SLOTS = 8
# So many agents on a few cores: whoever waits for a processor must not count as dead.
NODE_TIMEOUT_S = 120.0
PATIENCE_S = 300.0
# Renewals depend on time alone; the agents never use Range, it is our own question for the revision.
_NOT_COUNTED = ("LeaseKeepAlive", "Range")
_COUNTED = re.compile(r'^grpc_server_msg_(received|sent)_total\{grpc_method="(\w+)",.*\} (\S+)$', re.MULTILINE)


# --- one process of agents: reads orders from stdin, one a line, and tells what became of them ---------------------


class Agents:
    """Some of the agents of the job, on one event loop."""

    def __init__(self, first, count, total, endpoint):
        settings = EtcdSettings(
            parse_endpoints(endpoint)[0],
            "scale",
            total,
            total,
            node_timeout_s=NODE_TIMEOUT_S,
            connect_timeout_s=PATIENCE_S,
        )
        self.io = IoThread()
        self.all = [self.make(settings, f"node-{number:04d}") for number in range(first, first + count)]
        self.agreed = 0

    def make(self, settings, name):
        node = NodeDescription(name, f"host-{name}", os.getpid(), machine=f"machine-{name}", local_addr="127.0.0.1")
        return EtcdRendezvous(settings, node, io=self.io)

    def obey(self, order):
        """``go``: all start; ``fail N``: our first agent announces that generation N failed."""
        word, _, generation = order.partition(" ")
        if word == "go":
            self.io.start()
            for agent in self.all:
                agent.start(lambda event, agent=agent: self.hear(agent, event))
                agent.join(Joining(0, SLOTS))
        elif word == "fail":
            self.all[0].announce_failure(int(generation), "a rank was killed")
            self.all[0].join(Joining(int(generation) + 1, SLOTS))

    def hear(self, agent, event):
        if isinstance(event, PeerFailed):
            agent.join(Joining(event.generation + 1, SLOTS))
        elif isinstance(event, WorldAgreed):
            self.agreed += 1
            if self.agreed % len(self.all) == 0:
                say({"generation": event.world.generation, "at": time.monotonic(), "cpu_s": time.process_time()})
        else:
            say({"trouble": repr(event)})


def say(what):
    print(json.dumps(what), flush=True)


async def run_agents(first, count, total, endpoint):
    # A hundred agents' tables share a heap here: walking through all of them again and again would be our doing.
    gc.disable()
    agents, orders = Agents(first, count, total, endpoint), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    say({"ready": True, "cpu_s": time.process_time()})
    async for line in orders:
        agents.obey(line.decode().strip())
    # The one who drives is gone or has seen enough; the server's data goes with the server.
    os._exit(0)


# --- the one who drives them ------------------------------------------------------------------


class Crowd:
    """All processes."""

    def __init__(self, total, endpoint):
        firsts = range(0, total, PER_PROCESS)
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--some",
                    *map(str, (first, min(PER_PROCESS, total - first), total, endpoint)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first in firsts
        ]
        self.cpu_s = self.hear("ready")[1]

    def tell(self, order, only=None):
        for process in self.processes if only is None else self.processes[only : only + 1]:
            process.stdin.write(order + "\n")
            process.stdin.flush()

    def hear(self, what, value=True):
        """Wait for all; returns when the last one was there, and the processor time all have used so far."""
        told = []
        for process in self.processes:
            line = json.loads(process.stdout.readline() or '{"trouble": "a process of agents has ended"}')
            if line.get(what) != value:
                sys.exit(f"Error: instead of {what} {value}: {line}")
            told.append(line)
        return max(line.get("at", 0.0) for line in told), sum(line["cpu_s"] for line in told)


def server(endpoint, pid):
    """Return what etcd has done so far."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counted = {"received": 0.0, "sent": 0.0}
    for direction, method, value in _COUNTED.findall(text):
        if method not in _NOT_COUNTED:
            counted[direction] += float(value)
    ask = urllib.request.Request(f"http://{endpoint}/v3/kv/range", b'{"key": "Lw=="}')
    with urllib.request.urlopen(ask, timeout=30) as answer:
        writes = int(json.loads(answer.read())["header"]["revision"])
    sent = re.search(r"^etcd_network_client_grpc_sent_bytes_total (\S+)$", text, re.MULTILINE)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return {**counted, "writes": writes, "sent_bytes": float(sent[1]), "cpu_s": ticks / os.sysconf("SC_CLK_TCK")}


def measured(crowd, generation, total, endpoint, pid):
    """Have a generation agreed on; returns what it cost."""
    before, cpu_before, began = server(endpoint, pid), crowd.cpu_s, time.monotonic()
    if generation == 0:
        crowd.tell("go")
    else:
        crowd.tell(f"fail {generation - 1}", only=len(crowd.processes) - 1)
    at, crowd.cpu_s = crowd.hear("generation", generation)
    spent = {name: value - before[name] for name, value in server(endpoint, pid).items()}
    return {
        "s": at - began,
        "messages_per_agent": (spent["received"] + spent["sent"]) / total,
        "writes": spent["writes"],
        "writes_per_agent": spent["writes"] / total,
        "received_kb_per_agent": spent["sent_bytes"] / total / 1000,
        "agent_cpu_ms": 1000 * (crowd.cpu_s - cpu_before) / total,
        "etcd_cpu_s": spent["cpu_s"],
    }


def drive(total, endpoint, pid, rounds):
    crowd = Crowd(total, endpoint)
    formed = measured(crowd, 0, total, endpoint, pid)
    again = [measured(crowd, generation, total, endpoint, pid) for generation in range(1, rounds + 1)]
    reformed = {name: statistics.median(one[name] for one in again) for name in formed}
    figures = {f"form_{name}": value for name, value in formed.items()}
    figures |= {f"reform_{name}": value for name, value in reformed.items()}
    Path(os.environ["DRILL_OUT"], "agents.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1] == "--some":
        asyncio.run(run_agents(*map(int, sys.argv[2:5]), sys.argv[5]))
    else:
        drive(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
