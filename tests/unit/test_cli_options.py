"""Every option: both spellings, its environment variable, its default, its place in the config, bad values."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from ftlaunch.launcher.cli import command_line, options
from ftlaunch.launcher.config import StandbyMode, Stream
from ftlaunch.launcher.errors import UsageError
from support.machines import machine

ALL, OUT, ERR, NONE = Stream.ALL, Stream.OUT, Stream.ERR, Stream.NONE

# option, environment variable, text, path in the config, value
FILLS: list[tuple[str, str, str, str, Any]] = [
    ("nproc-per-node", "PET_NPROC_PER_NODE", "3", "workers.nproc", 3),
    ("nproc-per-node", "PET_NPROC_PER_NODE", "cpu", "workers.nproc", 8),
    ("role", "PET_ROLE", "trainer", "workers.role", "trainer"),
    ("max-restarts", "PET_MAX_RESTARTS", "0", "restarts.max_restarts", 0),
    ("max-restarts", "PET_MAX_RESTARTS", "12", "restarts.max_restarts", 12),
    ("max-no-progress", "FTLAUNCH_MAX_NO_PROGRESS", "5", "restarts.max_no_progress", 5),
    ("kill-grace", "FTLAUNCH_KILL_GRACE", "500ms", "stop.kill_grace_s", 0.5),
    ("kill-grace", "FTLAUNCH_KILL_GRACE", "0", "stop.kill_grace_s", 0.0),
    ("checkpoint-grace", "FTLAUNCH_CHECKPOINT_GRACE", "1m", "stop.checkpoint_grace_s", 60.0),
    ("shutdown-timeout", "PET_SHUTDOWN_TIMEOUT", "90", "stop.shutdown_timeout_s", 90.0),
    ("shutdown-timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "45", "stop.shutdown_timeout_s", 45.0),
    ("unkillable-timeout", "FTLAUNCH_UNKILLABLE_TIMEOUT", "7s", "stop.unkillable_timeout_s", 7.0),
    ("signals-to-handle", "PET_SIGNALS_TO_HANDLE", "SIGTERM, usr1,SIGTERM", "stop.signals", (15, 10)),
    ("signal-scope", "FTLAUNCH_SIGNAL_SCOPE", "group", "stop.group_scope", True),
    ("exit-barrier-timeout", "FTLAUNCH_EXIT_BARRIER_TIMEOUT", "5", "heartbeat.exit_barrier_timeout_s", 5.0),
    ("heartbeat", "FTLAUNCH_HEARTBEAT", "off", "heartbeat.enabled", False),
    ("init-timeout", "FTLAUNCH_INIT_TIMEOUT", "1h", "heartbeat.init_timeout_s", 3600.0),
    ("hang-timeout", "FTLAUNCH_HANG_TIMEOUT", "1.5m", "heartbeat.hang_timeout_s", 90.0),
    ("section-timeout", "FTLAUNCH_SECTION_TIMEOUT", "eval=1h, step=9", "heartbeat.section_timeouts_s",
     {"eval": 3600.0, "step": 9.0}),
    ("hang-safety-factor", "FTLAUNCH_HANG_SAFETY_FACTOR", "2.5", "heartbeat.safety_factor", 2.5),
    ("hang-floor", "FTLAUNCH_HANG_FLOOR", "1", "heartbeat.floor_s", 1.0),
    ("dstate-timeout", "FTLAUNCH_DSTATE_TIMEOUT", "2m", "heartbeat.dstate_timeout_s", 120.0),
    ("dstate-timeout", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "11", "heartbeat.dstate_timeout_s", 11.0),
    ("dstate-timeout", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0", "heartbeat.dstate_timeout_s", 0.0),
    ("standby", "FTLAUNCH_STANDBY", "off", "standby.mode", StandbyMode.OFF),
    ("standby-preload", "FTLAUNCH_STANDBY_PRELOAD", "torch,a.b", "standby.preload", ("torch", "a.b")),
    ("standby-exclude", "FTLAUNCH_STANDBY_EXCLUDE", "mpi4py", "standby.exclude", ("mpi4py",)),
    ("gpus", "FTLAUNCH_GPUS", "1,0", "workers.gpus", ("1", "0")),
    ("numa-binding", "", "core-complex", "workers.numa_binding", "core-complex"),
    ("omp-threads", "FTLAUNCH_OMP_THREADS", "4", "workers.omp_threads", 4),
    ("omp-threads", "FTLAUNCH_OMP_THREADS", "auto", "workers.omp_threads", 8),
    ("run-dir", "FTLAUNCH_RUN_DIR", "runs/a", "logs.run_dir", "runs/a"),
    ("log-dir", "PET_LOG_DIR", "logs", "logs.log_dir", "logs"),
    ("redirects", "PET_REDIRECTS", "3", "logs.redirects", {None: ALL}),
    ("redirects", "PET_REDIRECTS", "0:1,11:2", "logs.redirects", {0: OUT, 11: ERR}),
    ("tee", "PET_TEE", "1", "logs.tees", {None: OUT}),
    ("tee", "PET_TEE", "0:3,1:0", "logs.tees", {0: ALL, 1: NONE}),
    ("local-ranks-filter", "PET_LOCAL_RANKS_FILTER", "0,2", "logs.local_ranks_filter", frozenset({0, 2})),
    ("duplicate-stdout-filters", "PET_DUPLICATE_STDOUT_FILTERS", "a,,b,c", "logs.stdout_filters", ("a,b", "c")),
    ("duplicate-stderr-filters", "PET_DUPLICATE_STDERR_FILTERS", "x,", "logs.stderr_filters", ("x",)),
    ("event-log-handler", "PET_EVENT_LOG_HANDLER", "console", "logs.event_log_handler", "console"),
    ("log-level", "FTLAUNCH_LOG_LEVEL", "debug", "logs.level", "DEBUG"),
    ("log-level", "LOGLEVEL", "30", "logs.level", "WARNING"),
    ("nnodes", "PET_NNODES", "1", "rendezvous.max_nodes", 1),
    ("rdzv-id", "PET_RDZV_ID", "job7", "rendezvous.job_id", "job7"),
    ("rdzv-conf", "PET_RDZV_CONF", "timeout=9, join_timeout = 3", "rendezvous.conf",
     {"timeout": "9", "join_timeout": "3"}),
    ("master-port", "PET_MASTER_PORT", "1234", "rendezvous.master_port", 1234),
    ("local-addr", "PET_LOCAL_ADDR", "[::1]", "rendezvous.local_addr", "::1"),
    ("node-rank", "PET_NODE_RANK", "0", "rendezvous.node_rank", 0),
]  # fmt: skip

FLAGS = [
    ("torchrun-exit-codes", "FTLAUNCH_TORCHRUN_EXIT_CODES", "torchrun_exit_codes"),
    ("ignore-stopped", "FTLAUNCH_IGNORE_STOPPED", "heartbeat.ignore_stopped"),
    ("standby-cuda", "FTLAUNCH_STANDBY_CUDA", "standby.cuda"),
    ("virtual-local-rank", "PET_VIRTUAL_LOCAL_RANK", "workers.virtual_local_rank"),
    (
        "allow-multiple-agents-per-node",
        "FTLAUNCH_ALLOW_MULTIPLE_AGENTS_PER_NODE",
        "rendezvous.allow_multiple_agents",
    ),
]


def config_value(path: str, arguments: list[str], environ: dict[str, str]) -> Any:
    parsed = command_line.parse([*arguments, "-m", "train"], environ, machine())
    return operator.attrgetter(path)(parsed.config)


@pytest.mark.parametrize(("name", "variable", "text", "path", "expected"), FILLS)
def test_flag_and_environment(name: str, variable: str, text: str, path: str, expected: Any) -> None:
    assert config_value(path, [f"--{name}", text], {}) == expected
    assert config_value(path, [f"--{name.replace('-', '_')}={text}"], {}) == expected
    if variable:
        assert config_value(path, [], {variable: text}) == expected


@pytest.mark.parametrize(("name", "variable", "path"), FLAGS)
def test_flags(name: str, variable: str, path: str) -> None:
    assert config_value(path, [], {}) is False
    assert config_value(path, [f"--{name}"], {}) is True
    assert config_value(path, [f"--{name.replace('-', '_')}"], {variable: "0"}) is True
    for text in ("1", "true", "True", "yes", "on", "2"):
        assert config_value(path, [], {variable: text}) is True
    for text in ("0", "false", "FALSE", "no", "off", ""):
        assert config_value(path, [], {variable: text}) is False


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("workers.nproc", 1),
        ("workers.omp_threads", None),
        ("workers.gpus", None),
        ("workers.numa_binding", None),
        ("restarts.max_restarts", None),
        ("restarts.max_no_progress", 3),
        ("stop.kill_grace_s", 2.0),
        ("stop.shutdown_timeout_s", 30.0),
        ("stop.signals", (15, 2, 1, 3)),
        ("stop.group_scope", False),
        ("heartbeat.init_timeout_s", 1800.0),
        ("heartbeat.hang_timeout_s", 600.0),
        ("heartbeat.section_timeouts_s", {}),
        ("heartbeat.enabled", True),
        ("standby.mode", StandbyMode.AUTO),
        ("standby.preload", ()),
        ("logs.redirects", {None: NONE}),
        ("logs.tees", {None: NONE}),
        ("logs.local_ranks_filter", frozenset()),
        ("logs.stdout_filters", ()),
        ("logs.prefix_template", None),
        ("logs.level", "WARNING"),
        ("rendezvous.backend", "local"),
        ("rendezvous.job_id", ""),
        ("rendezvous.master_port", None),
        ("error_file", None),
    ],
)
def test_defaults(path: str, expected: Any) -> None:
    assert config_value(path, [], {}) == expected


def test_defaults_of_the_table_are_those_of_the_config() -> None:
    """Whoever builds a Config by hand, as tests do, gets what the command line would give."""
    from ftlaunch.launcher.config import CommandConfig, CommandKind, Config

    config = command_line.parse(["-m", "train"], {}, machine()).config
    plain = Config(CommandConfig(CommandKind.MODULE, "train"))
    assert config.heartbeat == plain.heartbeat
    assert config.restarts == plain.restarts
    assert config.standby == plain.standby
    assert config.workers == plain.workers


def test_precedence() -> None:
    environ = {"PET_MAX_RESTARTS": "4", "FTLAUNCH_LOG_LEVEL": "INFO", "LOGLEVEL": "DEBUG"}
    assert config_value("restarts.max_restarts", ["--max-restarts", "1"], environ) == 1
    assert config_value("restarts.max_restarts", [], environ) == 4
    assert config_value("logs.level", [], environ) == "INFO"
    assert config_value("restarts.max_restarts", [], {"PET_MAX_RESTARTS": ""}) is None


def test_the_last_of_several_counts_and_repeatable_ones_add_up() -> None:
    assert config_value("logs.tees", ["--tee", "1", "-t", "3"], {}) == {None: ALL}
    arguments = ["--section-timeout", "eval=5", "--section_timeout=step=1,eval=6"]
    assert config_value("heartbeat.section_timeouts_s", arguments, {}) == {"eval": 6.0, "step": 1.0}
    preload = ["--standby-preload", "a", "--standby-preload", "b,c"]
    assert config_value("standby.preload", preload, {"FTLAUNCH_STANDBY_PRELOAD": "z"}) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["--nproc-per-node", "0"], {}, "must be a number of at least 1, or auto, gpu, cpu or xpu, not '0'"),
        (["--nproc-per-node", "two"], {}, "not 'two'"),
        (["--nproc-per-node", "2.0"], {}, "not '2.0'"),
        (["--nproc-per-node", "gpu"], {}, "--nproc-per-node found no visible GPU on this node"),
        (["--nproc-per-node", "xpu"], {}, "found no XPU on this node"),
        (["--nnodes", "0"], {}, "--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, such as 2 or 2:4, not '0'"),
        (["--nnodes", "3:2"], {}, "not '3:2'"),
        (["--nnodes", "1:2:3"], {}, "not '1:2:3'"),
        (["--nnodes", ":2"], {}, "not ':2'"),
        ([], {"PET_NNODES": "x"}, "PET_NNODES must be N or MIN:MAX"),
        (["--max-restarts", "-1"], {}, "--max-restarts must be a whole number of at least 0, not '-1'"),
        (["--kill-grace", "5 parsecs"], {}, "--kill-grace must be seconds or a number with a unit, such as 30, 500ms"),
        (["--kill-grace", "nan"], {}, "not 'nan'"),
        (["--kill-grace", "1e99"], {}, "not '1e99'"),
        (["--kill-grace", "9" * 30], {}, "must be at most ten years"),
        (["--hang-timeout", "0"], {}, "--hang-timeout must be more than zero seconds, not '0'"),
        (["--section-timeout", "eval"], {}, "must be NAME=DURATION, such as checkpoint=10m, not 'eval'"),
        (["--hang-safety-factor", "0.5"], {}, "must be a number of at least 1"),
        (["--signals-to-handle", "SIGTREM"], {}, "must be signal names with commas between"),
        (["--signals-to-handle", "SIGKILL"], {}, "SIGKILL cannot"),
        (["--signals-to-handle", ","], {}, "must name at least one signal"),
        (["--signal-scope", "all"], {}, "must be one of leader, group, not 'all'"),
        (["--numa-binding", "core"], {}, "must be one of node, socket, exclusive, core-complex, not 'core'"),
        (["--start-method", "thread"], {}, "must be one of spawn, fork, forkserver"),
        ([], {"PET_START_METHOD": "thread"}, "PET_START_METHOD must be one of"),
        (["--redirects", "4"], {}, "must be 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a map by local rank"),
        (["--tee", "0:1,"], {}, "not '0:1,'"),
        (["--local-ranks-filter", "a"], {}, "must be local ranks with commas between, such as 0,2, not 'a'"),
        (["--omp-threads", "0"], {}, "--omp-threads must be a number of at least 1, or auto, not '0'"),
        (["--standby-preload", "a b"], {}, "must be module names"),
        (["--heartbeat", "maybe"], {}, "must be on or off, not 'maybe'"),
        (["--log-level", "LOUD"], {}, "must be DEBUG, INFO, WARNING, ERROR or CRITICAL"),
        (["--role", "a\nb"], {}, "must be a name without control characters"),
        (["--rdzv-conf", "timeout"], {}, "must be KEY=VALUE,KEY=VALUE"),
        (["--rdzv-conf", "timeout=soon"], {}, "--rdzv-conf timeout must be a number, not 'soon'"),
        (["--rdzv-conf", "password=x"], {}, "must not hold a secret (password)"),
        (["--rdzv-conf", "auth_token=x"], {}, "must not hold a secret (auth_token)"),
        (["--rdzv-conf", "user=me:x"], {}, "must not hold a secret (user)"),
        (["--rdzv-endpoint", "https://me:hunter2@h:1"], {}, "must hold no user and no password"),
        (["--master-port", "65536"], {}, "must be a whole number from 0 to 65535"),
        (["--rdzv-backend", "zeus"], {}, "must be one of static, c10d, etcd, etcd-v2, local, not 'zeus'"),
        (["--rdzv-endpoint", "host:port"], {}, "must be HOST or HOST:PORT with a port from 0 to 65535"),
        (["--rdzv-endpoint", "a b:1"], {}, "must be HOST or HOST:PORT"),
        (["--log-dir", "/etc/passwd"], {}, "--log-dir must be a folder, or a path where one can be made"),
        ([], {"PET_STANDALONE": "maybe"}, "PET_STANDALONE must be 1/true or 0/false, not 'maybe'"),
        ([], {"PET_MAX_RESTARTS": "many"}, "PET_MAX_RESTARTS must be a whole number of at least 0, not 'many'"),
        (["--gpus", "a"], {}, "--gpus must be numbers, GPU-... or MIG-... ids"),
        (["--gpus", "2"], {"CUDA_VISIBLE_DEVICES": "4,5"}, "CUDA_VISIBLE_DEVICES=4,5 has no number 2"),
        (
            ["--nproc-per-node", "3", "--virtual-local-rank"],
            {"CUDA_VISIBLE_DEVICES": "4,5"},
            "only 2 (4,5) are visible for 3 ranks: lower --nproc-per-node",
        ),
    ],
)  # fmt: skip
def test_bad_values(arguments: list[str], environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        command_line.parse([*arguments, "-m", "train"], environ, machine())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_others_set_for_themselves_is_no_error() -> None:
    parsed = command_line.parse(["-m", "train"], {"LOGLEVEL": "chatty", "SLURM_NODEID": "n/a"}, machine())
    assert parsed.config.logs.level == "WARNING"
    assert parsed.config.rendezvous.node_rank is None
    assert [note for note in parsed.notes if note.startswith("LOGLEVEL ")]


@pytest.mark.parametrize(
    ("text", "facts", "environ", "expected"),
    [
        ("auto", {"gpus": 4}, {}, 4),
        ("auto", {"gpus": 4}, {"CUDA_VISIBLE_DEVICES": "1,3"}, 2),
        ("auto", {"gpus": 4}, {"CUDA_VISIBLE_DEVICES": ""}, 8),
        ("auto", {"xpus": 3}, {}, 3),
        ("auto", {}, {}, 8),
        ("gpu", {"gpus": 2}, {}, 2),
        ("xpu", {"gpus": 2, "xpus": 1}, {}, 1),
        ("cpu", {"gpus": 2, "cpus": 5}, {}, 5),
        ("7", {"gpus": 2}, {}, 7),
    ],
)
def test_counting_ranks(text: str, facts: dict[str, Any], environ: dict[str, str], expected: int) -> None:
    parsed = command_line.parse(["--nproc-per-node", text, "-m", "train"], environ, machine(**facts))
    assert parsed.config.workers.nproc == expected


def test_gpus_option_narrows_what_is_counted() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    arguments = ["--gpus", "2,3", "--nproc-per-node", "gpu", "-m", "train"]
    workers = command_line.parse(arguments, environ, machine(gpus=8)).config.workers
    assert (workers.gpus, workers.nproc) == (("6", "7"), 2)


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["--nproc-per-node", "2"], {}, 1),
        (["--nproc-per-node", "2"], {"OMP_NUM_THREADS": "4"}, None),
        (["--nproc-per-node", "2", "--omp-threads", "3"], {"OMP_NUM_THREADS": "4"}, None),
        (["--nproc-per-node", "1"], {}, None),
        (["--nproc-per-node", "3", "--omp-threads", "auto"], {}, 2),
        (["--nproc-per-node", "20", "--omp-threads", "auto"], {}, 1),
    ],
)
def test_omp_threads(arguments: list[str], environ: dict[str, str], expected: int | None) -> None:
    assert config_value("workers.omp_threads", arguments, environ) == expected


def test_the_omp_line_comes_once_and_only_when_we_chose() -> None:
    def lines(environ: dict[str, str]) -> list[str]:
        notes = command_line.parse(["--nproc-per-node", "2", "-m", "train"], environ, machine()).infos
        return [note for note in notes if "OMP_NUM_THREADS" in note]

    assert len(lines({})) == 1
    assert lines({"OMP_NUM_THREADS": "2"}) == []


@pytest.mark.parametrize(
    ("arguments", "environ", "note"),
    [
        (["--logs-specs", "mine"], {}, "--logs-specs has no effect"),
        (["--event-log-handler", "dynamic_rendezvous"], {}, "--event-log-handler 'dynamic_rendezvous' has no effect"),
        ([], {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, "TORCHELASTIC_ENABLE_FILE_TIMER has no effect"),
        (["--tee", "0:3,4:3"], {}, "--tee names local rank 4, but this node has 0 to 0"),
        (["--local-ranks-filter", "1"], {}, "--local-ranks-filter names local rank 1"),
        (["--rdzv-conf", "last_call_timout=3"], {}, "did you mean last_call_timeout?"),
    ],
)
def test_notes(arguments: list[str], environ: dict[str, str], note: str) -> None:
    notes = command_line.parse([*arguments, "-m", "train"], environ, machine()).notes
    assert [line for line in notes if note in line]


def test_accepted_without_effect() -> None:
    arguments = ["--monitor-interval", "0.5", "--start-method", "spawn", "--use-env"]
    plain = command_line.parse(["-m", "train"], {}, machine())
    assert command_line.parse([*arguments, "-m", "train"], {}, machine()) == plain


def test_prefix_template_may_be_empty() -> None:
    template = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
    assert config_value("logs.prefix_template", [], {template: ""}) == ""
    assert config_value("logs.prefix_template", [], {template: "${rank} "}) == "${rank} "


def test_the_table_is_sound() -> None:
    names = [option.name for option in options.OPTIONS]
    variables = [variable for option in options.OPTIONS for variable in option.env]
    assert len(set(names)) == len(names)
    assert len(set(variables)) == len(variables)
    assert {option.group for option in options.OPTIONS} == set(options.GROUPS)
    for option in options.OPTIONS:
        assert option.help
        assert option.name == option.name.lower().replace("_", "-")
        if option.default is not None:
            option.parse(option.default)
