"""Send heartbeats and time every call: ``beats.py ftlaunch|nvrx|none busy|paced``.

``busy``: 2,000 beats with 2 ms of work between two, as in a training loop, then, under ftlaunch, the same while the
agent is stopped. ``paced``: 50 beats a second until killed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

OUT = Path(os.environ["DRILL_OUT"])
RANK = os.environ["RANK"]
COUNT = 2000
WORK_NS = 2_000_000


def make_beat(launcher):
    """Return the function that sends one heartbeat of a step."""
    if launcher == "ftlaunch":
        from ftlaunch.heartbeat import beat

        return lambda step: beat(step)
    if launcher == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        client = RankMonitorClient()
        client.init_workload_monitoring()
        return lambda step: client.send_heartbeat()
    return lambda step: None


def timed(beat, first):
    """Return the cost of each of COUNT beats in microseconds."""
    costs = []
    for step in range(first, first + COUNT):
        until = time.perf_counter_ns() + WORK_NS
        while time.perf_counter_ns() < until:
            pass
        began = time.perf_counter_ns()
        beat(step)
        costs.append((time.perf_counter_ns() - began) / 1000)
    return sorted(costs)


def summary(costs):
    """Return the figures that are kept of ``costs``."""
    return {"median_us": costs[len(costs) // 2], "p99_us": costs[len(costs) * 99 // 100], "max_us": costs[-1]}


def main():
    """Beat as the arguments say."""
    launcher, manner = sys.argv[1:3]
    beat = make_beat(launcher)
    if manner == "paced":
        (OUT / f"pid-{RANK}").write_text(str(os.getpid()))
        step = 0
        while True:
            beat(step)
            step += 1
            time.sleep(0.02)
    found = {"running": summary(timed(beat, 0))}
    if launcher == "ftlaunch":
        os.kill(os.getppid(), signal.SIGSTOP)
        found["stopped"] = summary(timed(beat, COUNT))
        os.kill(os.getppid(), signal.SIGCONT)
    (OUT / f"beats-{RANK}.json").write_text(json.dumps(found))


main()
