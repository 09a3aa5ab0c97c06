"""Every option of ``ftlaunch``, once: name, environment, type, default, group and help.

The scanner, the click command, ``--help``, ``--print-config`` and the resolution all read this one table. Two kinds:
torchrun's own options, whose environment names start with ``PET_`` and whose names may be abbreviated, and those of
ftlaunch, whose environment names start with ``FTLAUNCH_`` and which are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ftlaunch.launcher.cli import values
from ftlaunch.launcher.cli.values import choice, duration, positive_duration, whole

WORKERS = "Nodes and ranks"
RENDEZVOUS = "Rendezvous"
SCRIPT = "Training script"
RESTARTS = "Restarts and stopping"
STALLS = "Stalls"
STANDBY = "Warm standby"
DEVICES = "GPUs and CPUs"
OUTPUT = "Output and records"
METRICS = "Metrics and health"
NODE = "Health of the node"
NO_EFFECT = "Accepted for torchrun's sake, without effect"
GENERAL = "General"
CHECKPOINTS = "Resuming from checkpoints"
GROUPS = (
    WORKERS,
    RENDEZVOUS,
    SCRIPT,
    RESTARTS,
    CHECKPOINTS,
    STALLS,
    STANDBY,
    DEVICES,
    NODE,
    OUTPUT,
    METRICS,
    NO_EFFECT,
    GENERAL,
)

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


@dataclass(frozen=True)
class Option:
    """One row of the table. ``default`` is text, parsed like any other; ``None`` stands for "not set"."""

    name: str
    group: str
    help: str
    parse: Callable[[str], Any] = values.text
    default: str | None = None
    env: tuple[str, ...] = ()
    """Environment variables, the first one that is set and not empty counts."""
    metavar: str = "TEXT"
    short: str = ""
    flag: bool = False
    repeatable: bool = False
    """May be given several times; the parser returns a tuple each time and the tuples are joined."""
    torchrun: bool = False
    """May be abbreviated as in torchrun."""


def _torchrun(name: str, group: str, help: str, *, env: tuple[str, ...] | None = None, **rest: Any) -> Option:
    names = (f"PET_{name.replace('-', '_').upper()}",) if env is None else env
    return Option(name, group, help, env=names, torchrun=True, **rest)


def _own(name: str, group: str, help: str, *, also: tuple[str, ...] = (), **rest: Any) -> Option:
    return Option(name, group, help, env=(f"FTLAUNCH_{name.replace('-', '_').upper()}", *also), **rest)


# fmt: off
OPTIONS: tuple[Option, ...] = (
    _torchrun("nnodes", WORKERS, "Number of nodes, or the range in which it may vary.",
              parse=values.nodes, default="1:1", metavar="N|MIN:MAX"),
    _torchrun("nproc-per-node", WORKERS, "Ranks on this node; auto: one per GPU, else per XPU, else per CPU.",
              parse=values.processes, default="1", metavar="N|auto|gpu|cpu|xpu"),
    _torchrun("node-rank", WORKERS, "Place of this node among the nodes. Unset, SLURM_NODEID or JOB_COMPLETION_INDEX "
              "is taken when there are several nodes.", parse=whole(0), metavar="N",
              env=("PET_NODE_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX")),
    _torchrun("role", WORKERS, "Name of the ranks in line prefixes and in ROLE_NAME.",
              parse=values.one_line, default="default", metavar="NAME"),
    _own("allow-multiple-agents-per-node", WORKERS, "Let several agents of one job run on this machine.", flag=True),

    _torchrun("standalone", RENDEZVOUS, "One node, nothing shared with other jobs; sets aside the --rdzv options.",
              flag=True),
    _torchrun("rdzv-backend", RENDEZVOUS, "local, etcd, c10d or static. static on one node means local.",
              parse=choice("static", "c10d", "etcd", "etcd-v2", "local"), default="static", metavar="NAME"),
    _torchrun("rdzv-endpoint", RENDEZVOUS, "Where nodes meet; for etcd several with commas between.",
              parse=values.endpoints, default="", metavar="HOST[:PORT]"),
    _torchrun("rdzv-id", RENDEZVOUS, "Name of the job, the same on all nodes.",
              parse=values.one_line, default="none", metavar="ID"),
    _torchrun("rdzv-conf", RENDEZVOUS, "Settings of the backend.",
              parse=values.rendezvous_settings, default="", metavar="K=V,K=V"),
    _own("node-timeout", RENDEZVOUS, "A node that is not heard of for so long is given up; it has stopped its ranks by "
         "then. Unset: what --rdzv-conf says, else 10.", parse=positive_duration, metavar="DURATION"),
    _own("rdzv-outage-policy", RENDEZVOUS, "What a node does that cannot reach etcd for so long: stop its ranks, or "
         "continue until it hears that the others went on. Unset: what --rdzv-conf says, else stop.",
         parse=choice("stop", "continue"), metavar="stop|continue"),
    _own("grow", RENDEZVOUS, "When a waiting node is taken in.",
         parse=choice("immediately", "at-checkpoint", "never"), default="immediately",
         metavar="immediately|at-checkpoint|never"),
    _torchrun("master-addr", RENDEZVOUS, "Address of node 0, for static.",
              parse=values.address, default="127.0.0.1", metavar="HOST"),
    _torchrun("master-port", RENDEZVOUS, "Port of the ranks' store, for static. Unset: a free one on one node, "
              "29500 on several.", parse=whole(0, 65535), metavar="PORT"),
    _torchrun("local-addr", RENDEZVOUS, "Address of this node, used as it is.", parse=values.address, metavar="HOST"),

    _torchrun("module", SCRIPT, "Run the script as a module, as python -m does.", short="m", flag=True),
    _torchrun("no-python", SCRIPT, "Execute the script itself instead of python with it.", flag=True),
    _torchrun("run-path", SCRIPT, "Run the script inside the rank's own interpreter, as is always done "
              "here; it only beats --no-python.", flag=True),
    _own("python", SCRIPT, "Interpreter of the ranks; unset: the one that runs ftlaunch.",
         also=("PYTHON_EXEC",), metavar="PATH"),

    _torchrun("max-restarts", RESTARTS, "Restarts in all. Unset: as long as there is progress.",
              parse=whole(0), metavar="N"),
    _own("max-no-progress", RESTARTS, "End the job after so many generations in a row without progress.",
         parse=whole(1), default="3", metavar="N"),
    _own("restart-budget", RESTARTS, "At most N restarts within any such time, in place of --max-no-progress.",
         parse=values.restart_budget, metavar="N/DURATION"),
    _own("retry-exit-codes", RESTARTS, "Exit codes that are always worth a restart, as far as the limits go.",
         parse=values.exit_codes, default="", metavar="CODE,CODE"),
    _own("fatal-exit-codes", RESTARTS, "Exit codes that end the job at once.",
         parse=values.exit_codes, default="", metavar="CODE,CODE"),
    _own("kill-grace", RESTARTS, "Time between SIGTERM and SIGKILL for survivors of a failure that handle SIGTERM.",
         parse=duration, default="2", metavar="DURATION"),
    _own("checkpoint-grace", RESTARTS, "The same for a rank that is writing a checkpoint.",
         parse=duration, default="10", metavar="DURATION"),
    _torchrun("shutdown-timeout", RESTARTS, "Time ranks get when ftlaunch itself is told to stop.",
              parse=duration, default="30", metavar="DURATION",
              env=("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")),
    _own("unkillable-timeout", RESTARTS, "Give the node up when a killed rank is still there after this time.",
         parse=positive_duration, default="30", metavar="DURATION"),
    _torchrun("signals-to-handle", RESTARTS, "Signals that are forwarded and end the job.",
              parse=values.signals, default=SIGNALS, metavar="NAME,NAME"),
    _own("preempt-signal", RESTARTS, "Signals that mean preemption: ranks are asked to save, and the code is 128+n "
         "even if all of them end with 0, so that the job is queued again.",
         parse=values.signals, metavar="NAME,NAME"),
    _own("signal-scope", RESTARTS, "Who gets the polite signal: the rank alone, or its process group too.",
         parse=choice("leader", "group"), default="leader", metavar="leader|group"),
    _own("torchrun-exit-codes", RESTARTS, "End with 1 whatever failed, as torchrun does.", flag=True),

    _own("checkpoint-dir", CHECKPOINTS, "Where the script saves. The newest complete checkpoint is handed to the ranks "
         "as FTLAUNCH_RESUME_FROM and in place of {resume} in the script's arguments.",
         metavar="DIR"),
    _own("checkpoint-format", CHECKPOINTS, "auto, dcp, torch, hf, lightning, megatron, nemo or custom.",
         default="auto", metavar="NAME",
         parse=choice("auto", "dcp", "torch", "hf", "lightning", "megatron", "nemo", "custom")),
    _own("checkpoint-pattern", CHECKPOINTS, "Regular expression for the names of checkpoints; its group 'step' is the "
         "step.", metavar="REGEX"),
    _own("checkpoint-validator", CHECKPOINTS, "Command that gets a path and ends with 0 when that checkpoint is "
         "complete.", metavar="COMMAND"),
    _own("checkpoint-storage", CHECKPOINTS, "Whether all nodes see the same files, or each its own.",
         parse=choice("shared", "local"), default="shared", metavar="shared|local"),

    _own("heartbeat", STALLS, "Whether ranks are listened to at all.", parse=values.on_off,
         default="on", metavar="on|off"),
    _own("init-timeout", STALLS, "Longest silence before the first step.",
         parse=positive_duration, default="1800", metavar="DURATION"),
    _own("hang-timeout", STALLS, "Longest silence afterwards, until the job's own rhythm is known.",
         parse=positive_duration, default="600", metavar="DURATION"),
    _own("section-timeout", STALLS, "Longest silence in one section.",
         parse=values.section_timeouts, default="", metavar="NAME=DURATION", repeatable=True),
    _own("hang-safety-factor", STALLS, "A stall is this many times the longest gap seen so far.",
         parse=values.number(1), default="10", metavar="X"),
    _own("hang-floor", STALLS, "... but never less than this.", parse=positive_duration,
         default="30", metavar="DURATION"),
    _own("dstate-timeout", STALLS, "Longest uninterruptible sleep (state D) of a rank; 0: no limit.",
         parse=duration, default="60", metavar="DURATION", also=("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",)),
    _own("exit-barrier-timeout", STALLS, "Longest idleness of the remaining ranks once one has ended with 0; 0: no "
         "limit.", parse=duration, default="300", metavar="DURATION"),
    _own("ignore-stopped", STALLS, "Leave ranks alone that somebody has stopped (state T).", flag=True),

    _own("standby", STANDBY, "Keep warm processes for the next generation; auto: if memory allows.",
         parse=choice("auto", "on", "off"), default="auto", metavar="auto|on|off"),
    _own("standby-preload", STANDBY, "Modules to import on top of those seen in use.",
         parse=values.modules, default="", metavar="MODULE,MODULE", repeatable=True),
    _own("standby-exclude", STANDBY, "Modules never to import ahead of time.",
         parse=values.modules, default="", metavar="MODULE,MODULE", repeatable=True),
    _own("standby-cuda", STANDBY, "Create the CUDA context ahead of time too. Costs GPU memory.", flag=True),

    _own("gpus", DEVICES, "Use these of the visible GPUs only: positions among them, or UUIDs.",
         parse=values.words, metavar="0,1|UUID,UUID"),
    _torchrun("virtual-local-rank", DEVICES, "Each rank sees one GPU only, with LOCAL_RANK=0.", flag=True),
    _torchrun("numa-binding", DEVICES, "Bind ranks to the CPUs near their GPUs; without GPUs, spread them.",
              env=(), parse=choice("node", "socket", "exclusive", "core-complex"),
              metavar="node|socket|exclusive|core-complex"),
    _own("omp-threads", DEVICES, "OMP_NUM_THREADS where you have not set it; auto: CPUs / ranks. Unset: 1 when there "
         "are several ranks.", parse=values.threads, metavar="N|auto"),

    _own("gpu-reclaim-timeout", NODE, "Give the node up when the GPU memory of dead ranks is not back after this time.",
         parse=duration, default="60", metavar="DURATION"),
    _own("gpu-reclaim-tolerance", NODE, "So much more may be in use than before the ranks started.",
         parse=values.size, default="256M", metavar="SIZE"),
    _own("health-check", NODE, "Shell command that ends with 0 where ranks may run; its last line is the reason where "
         "not. Run before each rendezvous, when no rank of ours runs.", metavar="COMMAND"),
    _own("health-check-timeout", NODE, "Longest time it may take.",
         parse=positive_duration, default="60", metavar="DURATION"),
    _own("min-free-disk", NODE, "Give the node up when less is free at --checkpoint-dir or --run-dir.",
         parse=values.size, default="64M", metavar="SIZE"),
    _own("clean-shm", NODE, "Before the next generation and when the job fails, remove this user's files in /dev/shm "
         "that are new since the ranks started and open nowhere. Who made them can't be told: not to be used beside "
         "other jobs of the same user.", flag=True),
    _own("termination-log", NODE, "File that gets the reason when the job fails; unset: Kubernetes' own, where there "
         "is one.", metavar="PATH"),

    _own("run-dir", OUTPUT, "Folder for events, incidents and logs of this run.", metavar="DIR"),
    _torchrun("log-dir", OUTPUT, "Root of the ranks' log files; unset: below the run folder.", metavar="DIR"),
    _torchrun("redirects", OUTPUT, "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; or by local "
              "rank.", short="r", parse=values.streams, default="0", metavar="0-3|RANK:0-3,..."),
    _torchrun("tee", OUTPUT, "Streams that go to files and to the console.", short="t",
              parse=values.streams, default="0", metavar="0-3|RANK:0-3,..."),
    _torchrun("local-ranks-filter", OUTPUT, "Show only these local ranks on the console.",
              parse=values.ranks, metavar="RANK,RANK"),
    _torchrun("duplicate-stdout-filters", OUTPUT, "Lines of stdout that hold one of these also go to "
              "filtered_stdout.log; ,, is a comma.", parse=values.filters, default="",
              metavar="TEXT,TEXT"),
    _torchrun("duplicate-stderr-filters", OUTPUT, "The same for stderr.",
              parse=values.filters, default="", metavar="TEXT,TEXT"),
    _torchrun("event-log-handler", OUTPUT, "console: every event of the run is a line on stderr too, as ftctl "
              "events shows it.", parse=values.one_line, default="null", metavar="NAME"),
    _own("log-file-limit", OUTPUT, "Largest size of one log file; then it is rotated, once.",
         parse=values.size, default="1G", metavar="SIZE"),
    _own("log-level", OUTPUT, "How much ftlaunch says itself.", parse=values.log_level,
         default="WARNING", also=("LOGLEVEL",), metavar="LEVEL"),

    _own("metrics-port", METRICS, "Serve metrics for Prometheus at /metrics on this port; 0: a free one.",
         parse=whole(0, 65535), metavar="PORT"),
    _own("health-port", METRICS, "Serve /healthz (the agent lives) and /readyz (steps are heard) on this port.",
         parse=whole(0, 65535), metavar="PORT"),
    _own("metrics-address", METRICS, "Address on which both listen; a probe or scraper from outside needs 0.0.0.0 or "
         "the node's own.", parse=values.address, default="127.0.0.1", metavar="HOST"),

    _torchrun("monitor-interval", NO_EFFECT, "Deaths are seen at once; nothing is polled.", default="0.1",
              parse=values.number(0), metavar="SECONDS"),
    _torchrun("start-method", NO_EFFECT, "Ranks are always executed afresh.",
              parse=choice("spawn", "fork", "forkserver"), default="spawn", metavar="spawn|fork|forkserver"),
    _torchrun("logs-specs", NO_EFFECT, "A torchrun plug-in for the layout of logs.", env=(), metavar="NAME"),
    Option("use-env", NO_EFFECT, "Ranks read LOCAL_RANK. A script that wants --local-rank: write "
           "--local-rank='${local_rank}' after it.", flag=True),

    Option("print-config", GENERAL, "Show every effective value and where it comes from, and end.", flag=True),
    Option("version", GENERAL, "Show the version and end.", flag=True),
    Option("help", GENERAL, "Show this and end.", short="h", flag=True, torchrun=True),
)
# fmt: on


@cache
def by_name() -> dict[str, Option]:
    """Options by long name, in dashes."""
    return {option.name: option for option in OPTIONS}


@cache
def by_letter() -> dict[str, Option]:
    """Options by their single letter."""
    return {option.short: option for option in OPTIONS if option.short}
