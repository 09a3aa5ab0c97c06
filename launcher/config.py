"""What the job should be: frozen, resolved once from flags, environment and defaults (:mod:`.cli.resolve`).

No module reads ``os.environ`` or ``sys.argv`` after this. Durations are seconds and end in ``_s``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class CommandKind(enum.Enum):
    """How the training script is run."""

    SCRIPT = "script"
    """``python train.py``"""
    MODULE = "module"
    """``python -m pkg.train``"""
    BINARY = "binary"
    """``--no-python``: executed as it is"""


class StandbyMode(enum.Enum):
    """Whether warm standby workers are kept."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class Stream(enum.Flag):
    """torchrun's number for a set of output streams: 0 none, 1 stdout, 2 stderr, 3 both."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True)
class CommandConfig:
    """The program every rank runs. ``args`` may hold the literal ``${local_rank}``."""

    kind: CommandKind
    target: str
    args: tuple[str, ...] = ()
    interpreter: str = ""
    interpreter_args: tuple[str, ...] = ("-u",)


@dataclass(frozen=True)
class RendezvousConfig:
    """How nodes meet. ``backend`` is ``local``, ``etcd``, ``c10d`` or ``static``.

    With ``local``, an empty ``job_id`` asks for a random one and ``master_port`` is set only when it must be this one.
    """

    backend: str = "local"
    endpoint: str = ""
    job_id: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    grow: str = "immediately"
    """When a waiting node is taken in: ``immediately``, ``at-checkpoint`` (the next that is heard of), ``never``."""
    allow_multiple_agents: bool = False
    """``--allow-multiple-agents-per-node``"""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that only the agent needs: no process that it starts inherits them."""


@dataclass(frozen=True)
class WorkersConfig:
    """The ranks of this node and what they get from us."""

    nproc: int = 1
    role: str = "default"
    virtual_local_rank: bool = False
    gpus: tuple[str, ...] | None = None
    """CUDA_VISIBLE_DEVICES entries left by ``--gpus``; ``None`` leaves the variable as it was found."""
    numa_binding: str | None = None
    omp_threads: int | None = None
    """Value for OMP_NUM_THREADS where the user has none; ``None`` leaves it unset."""


@dataclass(frozen=True)
class RestartBudget:
    """At most ``restarts`` within any ``window_s`` seconds."""

    restarts: int
    window_s: float


@dataclass(frozen=True)
class RestartConfig:
    """``max_restarts`` as in torchrun when given; ``None`` means: as long as there is progress."""

    max_restarts: int | None = None
    max_no_progress: int = 3
    budget: RestartBudget | None = None
    """Takes the place of ``max_no_progress``; beside ``max_restarts`` both hold."""
    retry_exit_codes: frozenset[int] = frozenset()
    """Always worth a restart as far as the limits go: no rule that stops at once applies. 128+n for a signal."""
    fatal_exit_codes: frozenset[int] = frozenset()
    """Never worth one."""
    max_membership_changes: int = 100
    """Node changes in a row without any progress, where ``max_restarts`` is not given."""
    start_window_s: float = 600.0
    """A worker that fails before it gave any sign of work ends the job only within this time of its start: a script
    that never beats may have run for hours."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What the next generation may resume from; ``directory`` ``None``: the script finds its checkpoint itself."""

    directory: str | None = None
    format: str = "auto"
    """A key of :data:`ftlaunch.launcher.checkpoints.formats.CHOICES`."""
    pattern: str | None = None
    """Regular expression for whole names; a group named ``step`` holds the step."""
    validator: str | None = None
    """Command line; the path is appended or takes the place of ``{path}``; exit code 0 means complete."""
    validator_timeout_s: float = 30.0
    scan_timeout_s: float = 60.0
    shared_storage: bool = True
    """All nodes see the same files. Otherwise each has its own, and only a step that every node has will do."""


@dataclass(frozen=True)
class StopConfig:
    """How workers are stopped. See README, "How workers are stopped"."""

    kill_grace_s: float = 2.0
    checkpoint_grace_s: float = 10.0
    shutdown_timeout_s: float = 30.0
    unkillable_timeout_s: float = 30.0
    signals: tuple[int, ...] = ()
    preempt_signals: tuple[int, ...] = ()
    """Ask ranks to save, end with 128+n whatever they end with: the job is to be queued again."""
    group_scope: bool = False
    """Send the polite signal to the whole process group instead of the leader only."""


@dataclass(frozen=True)
class HeartbeatConfig:
    """When silence is a stall."""

    init_timeout_s: float = 1800.0
    hang_timeout_s: float = 600.0
    section_timeouts_s: Mapping[str, float] = field(default_factory=dict)
    safety_factor: float = 10.0
    floor_s: float = 30.0
    dstate_timeout_s: float = 60.0
    """Zero: no limit."""
    exit_barrier_timeout_s: float = 300.0
    ignore_stopped: bool = False
    enabled: bool = True


@dataclass(frozen=True)
class StandbyConfig:
    """Warm standby workers."""

    mode: StandbyMode = StandbyMode.AUTO
    preload: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    cuda: bool = False


@dataclass(frozen=True)
class LogConfig:
    """Where output goes. ``redirects``/``tees`` are by local rank, ``None`` key for all others."""

    run_dir: str | None = None
    log_dir: str | None = None
    redirects: Mapping[int | None, Stream] = field(default_factory=dict)
    tees: Mapping[int | None, Stream] = field(default_factory=dict)
    local_ranks_filter: frozenset[int] = frozenset()
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix_template: str | None = None
    """TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: ``${role_name} ${rank} ${local_rank}``; "" prints no prefix."""
    level: str = "WARNING"
    max_file_bytes: int = 1 << 30
    """Size at which the log file of one stream is set aside as ``.1`` and begun anew."""
    event_log_handler: str = "null"
    """``console``: every event of the run is a line on stderr too. Anything else: it is not."""


@dataclass(frozen=True)
class MetricsConfig:
    """What the agent serves over HTTP. A port of 0 is one that is free; ``None``: none."""

    port: int | None = None
    health_port: int | None = None
    address: str = "127.0.0.1"
    """Of both ports."""


@dataclass(frozen=True)
class NodeConfig:
    """When this node is given up, and what is cleared away on it. Sizes are bytes."""

    gpu_reclaim_timeout_s: float = 60.0
    gpu_reclaim_tolerance: int = 256 << 20
    health_check: str | None = None
    health_check_timeout_s: float = 60.0
    check_every_s: float = 30.0
    """How often GPUs and memory are looked at while ranks run."""
    min_free_disk: int = 64 << 20
    clean_shm: bool = False
    termination_log: str | None = None
    """``None``: Kubernetes' own file where it exists."""


@dataclass(frozen=True)
class Config:
    """Everything the agent needs to know, once."""

    command: CommandConfig
    rendezvous: RendezvousConfig = RendezvousConfig()
    workers: WorkersConfig = WorkersConfig()
    restarts: RestartConfig = RestartConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    stop: StopConfig = StopConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    standby: StandbyConfig = StandbyConfig()
    logs: LogConfig = LogConfig()
    node: NodeConfig = NodeConfig()
    metrics: MetricsConfig = MetricsConfig()
    torchrun_exit_codes: bool = False
    error_file: str | None = None
    """TORCHELASTIC_ERROR_FILE of the launcher itself: gets a copy of the root cause."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment as the launcher found it, less the secrets of the rendezvous; what workers inherit."""
