"""What is measured: one function per item takes one sample of one contender and returns its figures by name."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench_lib import contenders as who
from bench_lib import measure, nodes, recovery, scale
from bench_lib.contenders import ROOT, Contender
from bench_lib.nodes import DRILL
from bench_lib.runner import Failed, Running, start
from bench_lib.settings import Figures, Settings
from support import hosts
from support.waiting import wait_until

WORKLOADS = ROOT / "scripts" / "workloads"
GOODPUT_FAULTS = "310:kill,720:raise,1130:kill,1460:freeze,1840:kill"
GOODPUT_STEPS = 2000
_RANKS = 8
_TIMEOUT_S = 240.0
_NVRX_TIMEOUTS = ("--ft-initial-rank-heartbeat-timeout", "600", "--ft-rank-heartbeat-timeout", "600")


@dataclass(frozen=True)
class Item:
    """One row of the bench. ``key`` is the figure that is compared; less is better, unless ``more_is_better``.

    ``seconds``: what one sample of every contender takes together, on two cores. ``missing`` tells, in a few words,
    what this machine lacks for it.
    """

    letter: str
    title: str
    key: str
    unit: str
    sample: Callable[[Contender, Settings], Figures]
    contenders: tuple[Contender, ...]
    seconds: float
    repeats: int = 3
    more_is_better: bool = False
    missing: Callable[[], str] = lambda: ""
    shown: tuple[str, ...] = ()
    """What the table shows beside ``key``; all figures when empty."""


def empty_launch(contender: Contender, settings: Settings) -> Figures:
    """Time from the command to its end, two ranks that do nothing."""
    with start(contender.command(WORKLOADS / "empty.py", 2), contender.environment) as job:
        return {"wall_s": job.finish(_TIMEOUT_S)}


def one_fault(kind: str, **extra: str) -> Callable[[Contender, Settings], Figures]:
    """Return a sampler for one fault of ``kind`` after ``fault_step`` steps of the drill."""

    def sample(contender: Contender, settings: Settings) -> Figures:
        # Whoever has no standbys to be warm by then need not be waited for.
        step = settings.fault_step if contender is who.FTLAUNCH else settings.cold_fault_step
        drill = {"DRILL_FAULTS": f"{step}:{kind}", "DRILL_STEPS": str(step + 40), **extra}
        with start(contender.command(DRILL, 2), {**contender.environment, **drill}) as job:
            wall = job.finish(_TIMEOUT_S)
            story = recovery.events(job.out)
            warm = _warm_starts(job)
        found = recovery.recoveries(story)
        if len(found) != 1 or recovery.done(story) != {0, 1}:
            raise Failed(f"{len(found)} faults, ranks {recovery.done(story)} done")
        return {"resume_s": found[0].resume_s, "respawn_s": found[0].respawn_s, "wall_s": wall, **warm}

    return sample


def idle_agent(contender: Contender, settings: Settings) -> Figures:
    """Memory and processor time of the launcher's side while eight ranks do nothing."""
    with start(contender.command(WORKLOADS / "idle.py", _RANKS), contender.environment) as job:
        use = _settled_use(job, settings)
    return {"pss_mb": use.pss_mb, "cpu_percent": use.cpu_percent, "processes": use.processes}


def beat_cost(contender: Contender, settings: Settings) -> Figures:
    """Cost of a heartbeat to the training loop, and to the launcher's side with eight ranks at 50 a second."""
    launcher, options = ("nvrx", _NVRX_TIMEOUTS) if contender is who.NVRX else ("ftlaunch", ())
    script = WORKLOADS / "beats.py"
    command = contender.command(script, 1, 0, *options)
    with start([*command, launcher, "busy"], contender.environment) as job:
        job.finish(_TIMEOUT_S)
        found = json.loads((job.out / "beats-0.json").read_text())
    with start([*contender.command(script, _RANKS, 0, *options), launcher, "paced"], contender.environment) as job:
        use = _settled_use(job, settings)
    figures = {"median_us": found["running"]["median_us"], "p99_us": found["running"]["p99_us"]}
    if "stopped" in found:
        figures |= {f"stopped_{name}": value for name, value in found["stopped"].items()}
    return {**figures, "launcher_cpu_percent": use.cpu_percent, "launcher_pss_mb": use.pss_mb}


def goodput(contender: Contender, settings: Settings) -> Figures:
    """Shares of the wall time in which 2,000 steps with five faults were done."""
    with start(contender.command(DRILL, 2), {**contender.environment, **_long_drill()}) as job:
        wall = job.finish(2 * _TIMEOUT_S)
        return _goodput_figures(job.out, wall)


def container_goodput(contender: Contender, settings: Settings) -> Figures:
    """The same under a launcher without restarts, started again as Kubernetes does with a container that crashed.

    Its back-off of 10, 20, 40, ... 300 s is scaled by ``backoff_scale``.
    """
    folder = Path(tempfile.mkdtemp(prefix="ftb-"))
    delay = 10.0 * settings.backoff_scale
    began = time.monotonic()
    try:
        while _container_life(contender, folder) != 0:
            if time.monotonic() - began > 4 * _TIMEOUT_S:
                raise Failed(f"not done after {4 * _TIMEOUT_S:g} s")
            threading.Event().wait(delay)
            delay = min(2 * delay, 300.0 * settings.backoff_scale)
        return _goodput_figures(folder / "out", time.monotonic() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def steady(contender: Contender, settings: Settings) -> Figures:
    """Time of a step without any fault, after the warm-up and during it, and what the standbys hold."""
    drill = {"DRILL_STEPS": str(settings.steady_steps), "DRILL_STEP_S": "0", "DRILL_WIDTH": "1024"}
    with start(contender.command(DRILL, 2), {**contender.environment, **drill, "DRILL_CKPT_EVERY": "1000000"}) as job:
        ranks = wait_until(lambda: _pids_of_drill(job.out, 2), 60.0, "two ranks that train")
        threading.Event().wait(settings.steady_warm_up_s)
        use = measure.use_of(job, ranks, 5.0)
        job.finish(_TIMEOUT_S)
        story = recovery.events(job.out)
    steps = [event["t"] for event in story if event["event"] == "step" and event["rank"] == 0]
    warm = steps[0] + settings.steady_warm_up_s
    early = [at for at in steps if at <= warm]
    late = [at for at in steps if at > warm]
    if len(late) < 200:
        raise Failed(f"only {len(late)} steps after the warm-up")
    return {
        "step_ms": 1000 * (late[-1] - late[0]) / (len(late) - 1),
        "step_median_ms": 1000 * statistics.median(b - a for a, b in itertools.pairwise(late)),
        "warm_up_step_ms": 1000 * (early[-1] - early[0]) / (len(early) - 1),
        "launcher_pss_mb": use.pss_mb,
        "launcher_cpu_percent": use.cpu_percent,
    }


CONTAINER = who.TORCHRUN.with_options("container restart")
_PEERS = (who.FTLAUNCH, who.TORCHRUN, who.NVRX)
_WITH_COLD = (who.FTLAUNCH, who.FTLAUNCH_COLD, who.TORCHRUN, who.NVRX)
_TWO_NODES = (who.FTLAUNCH, who.FTLAUNCH_C10D, who.TORCHRUN_C10D)
ITEMS = (
    Item("a", "empty launch, 2 ranks", "wall_s", "s", empty_launch, _PEERS, 6, repeats=5),
    Item("b", "SIGKILL of a rank → first new step", "resume_s", "s", one_fault("kill"), _WITH_COLD, 95, repeats=5),
    Item("c", "exception in a rank → first new step", "resume_s", "s", one_fault("raise"), _PEERS, 75),
    Item("d", "SIGKILL, survivor is stopped", "resume_s", "s", one_fault("freeze"), _PEERS, 150, repeats=1),
    Item(
        "e", "SIGKILL, survivor ignores SIGTERM", "resume_s", "s", one_fault("kill", DRILL_STUBBORN="1"), _PEERS, 150,
        repeats=1,
    ),
    Item("f", "launcher's memory, 8 idle ranks (PSS)", "pss_mb", "MB", idle_agent, _PEERS, 60, repeats=2),
    Item("g", "a heartbeat in the loop", "median_us", "µs", beat_cost, (who.FTLAUNCH_COLD, who.NVRX), 75, repeats=2),
    Item(
        "h", "training goodput, 2,000 steps, 5 faults", "training_percent", "%", goodput, (*_PEERS, CONTAINER), 580,
        repeats=1, more_is_better=True,
    ),
    Item(
        "i", "time of a step, standbys on and off", "step_ms", "ms", steady, (who.FTLAUNCH_WARM, who.FTLAUNCH_COLD), 130
    ),
    Item(
        "j", "agents on one etcd: time to agree again after a failure", "reform_s", "s", scale.agree,
        tuple(map(scale.crowd, scale.SIZES)), 40, repeats=2, missing=scale.missing, shown=scale.SHOWN,
    ),
    Item(
        "k", "two nodes: SIGKILL of a rank → first new step on both", "resume_s", "s", nodes.fault(nodes.kill_rank),
        _TWO_NODES, 200, repeats=1, missing=hosts.missing,
    ),
    Item(
        "l", "two nodes and a spare: SIGKILL of an agent", "resume_s", "s", nodes.fault(nodes.kill_agent, spare=True),
        (who.FTLAUNCH,), 130, repeats=1, missing=hosts.missing,
    ),
    Item(
        "m", "the same, its network gone too (node timeout 10 s)", "resume_s", "s",
        nodes.fault(nodes.kill_host, spare=True), (who.FTLAUNCH,), 160, repeats=1, missing=hosts.missing,
    ),
)  # fmt: skip


def sampler(item: Item, contender: Contender) -> Callable[[Contender, Settings], Figures]:
    """Return what takes a sample of ``item`` under ``contender``."""
    return container_goodput if item.letter == "h" and contender is CONTAINER else item.sample


def _warm_starts(job: Running) -> Figures:
    """How many ranks of the last generation came from standbys, for a launcher that has them and says so."""
    for path in (job.folder / "home").rglob("events.jsonl"):
        started = [json.loads(line) for line in path.read_text().splitlines() if '"workers_started"' in line]
        return {"warm": started[-1]["warm"]} if started else {}
    return {}


def _settled_use(job: Running, settings: Settings) -> measure.Use:
    ranks = wait_until(lambda: _pids_told(job, _RANKS), 120.0, f"{_RANKS} ranks that tell their pid")
    threading.Event().wait(settings.settle_s)
    return measure.use_of(job, ranks, settings.window_s)


def _pids_told(job: Running, count: int) -> list[int]:
    if job.process.poll() is not None:
        raise Failed(f"ended with {job.process.returncode}: {job.tail()}")
    texts = [path.read_text() for path in job.out.glob("pid-*")]
    return [int(text) for text in texts] if len(texts) == count and all(texts) else []


def _pids_of_drill(out: Path, count: int) -> list[int]:
    pids = {event["pid"] for event in recovery.events(out) if event["event"] == "step"}
    return sorted(pids) if len(pids) == count else []


def _long_drill() -> Mapping[str, str]:
    return {"DRILL_STEPS": str(GOODPUT_STEPS), "DRILL_CKPT_EVERY": "500", "DRILL_FAULTS": GOODPUT_FAULTS}


def _container_life(contender: Contender, folder: Path) -> int:
    command = contender.command(DRILL, 2, 0)
    with start(command, {**contender.environment, **_long_drill()}, folder) as job:
        return job.end(_TIMEOUT_S)


def _goodput_figures(out: Path, wall_s: float) -> Figures:
    story = recovery.events(out)
    if recovery.done(story) != {0, 1}:
        raise Failed(f"only ranks {recovery.done(story)} did all steps")
    share = recovery.goodput(story, wall_s)
    taken = len([name for name in os.listdir(out) if name.startswith("taken-")])
    if taken != len(GOODPUT_FAULTS.split(",")):
        raise Failed(f"only {taken} of the faults were taken")
    return {
        "training_percent": 100 * share.training,
        "infrastructure_percent": 100 * share.infrastructure,
        "wall_s": wall_s,
        "resume_median_s": statistics.median(r.resume_s for r in recovery.recoveries(story)),
    }
