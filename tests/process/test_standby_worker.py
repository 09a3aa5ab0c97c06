"""A standby imports ahead without becoming anything that a rank must not be."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

import pytest

from ftlaunch.heartbeat.standbys import frames
from ftlaunch.heartbeat.wire import Kind
from support import procfs, ranks
from support.waiting import wait_until


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of 'installed' modules, for PYTHONPATH."""
    folder = tmp_path / "packages"
    folder.mkdir()
    sources = {
        "good": "import os, warnings\nwarnings.filterwarnings('ignore', message='from good')\nloads = []\n",
        "writer": "import os\nos.environ['WRITTEN'] = 'w'\nos.environ.setdefault('DEFAULTED', 'd')\n",
        "reader": "import os\nseen = os.environ.get('RANK')\n",
        "port_reader": "import os\nseen = os.getenv('MASTER_PORT')\n",
        "copier": "import os\nseen = os.environ.copy(), dict(os.environ), {**os.environ}\n"
        "found = [key for key, value in os.environ.items() if not value], [key for key in os.environ if 'x' in key]\n",
        "mpi4py": "",
        "wants_what_is_not_there": "try:\n    import horovod\nexcept ImportError:\n    pass\n",
        "reads_after_walk": "import os\nseen = dict(os.environ)\nimport good\nport = os.environ['MASTER_PORT']\n",
        "wants_port_reader": "try:\n    import port_reader\nexcept ImportError:\n    pass\n",
        "registers": "import atexit\natexit.register(print, 'handler of a module')\n",
        "fails": "1/0",
        "exits": "import sys; sys.exit(3)",
        "threads": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "spawns": "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n",
        "signals": "import signal\nsignal.signal(signal.SIGTERM, lambda *a: None)\n",
        "wants_mpi": "try:\n    import mpi4py\nexcept ImportError:\n    mpi4py = None\n",
        "wants_local": "try:\n    import local_settings\nexcept ImportError:\n    local_settings = None\n",
        "prints": "print('banner')\nimport os, sys\nos.write(2, b'banner')\n",
        "limits": "import os, resource, sys, gc\nos.umask(0)\nsys.setrecursionlimit(5000)\ngc.disable()\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_CORE)\nresource.setrlimit(resource.RLIMIT_CORE, (0, hard))\n"
        "os.chdir('/')\nsys.path.append('/from/limits')\nsys.excepthook = print\n",
        "slow": "import time\nend = time.process_time() + 0.15\n"
        "while time.process_time() < end: pass\nopen(__file__ + '.done', 'w').close()\nfrom slow_inner import x\n",
        "slow_inner": "x = 1\n",
        "counts": "import os\ncpus = sorted(os.sched_getaffinity(0))\n",
        "binds": "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n",
    }
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "acting").mkdir()
    (folder / "acting" / "__init__.py").write_text(sources["threads"])
    (folder / "acting" / "inner.py").touch()
    return folder


def release(
    agent: ranks.Agent, standby: ranks.Standby, folder: Path, script: str, *args: str, **more: str
) -> ranks.Finished:
    (folder / "train.py").write_text(script)
    standby.go("script", "train.py", *args, cwd=folder, **more)
    agent.listen(standby.process)
    return ranks.finish(standby.process)


def test_standby_is_silent_until_released(agent: ranks.Agent, tmp_path: Path) -> None:
    with ranks.standby(agent) as standby:
        standby.preload("json")
        assert agent.receive() == []
        done = release(agent, standby, tmp_path, "from ftlaunch import heartbeat\nheartbeat.beat(1)\n")
    assert (done.code, done.err) == (0, "")
    kinds = [message.kind for message in agent.receive()]
    assert kinds == [Kind.HELLO, Kind.HELLO, Kind.BEAT, Kind.MODULES]


def test_preloaded_modules_are_not_executed_again_and_keep_their_identity(
    agent: ranks.Agent, packages: Path, tmp_path: Path
) -> None:
    path = {"PYTHONPATH": str(packages)}
    script = (
        "import sys\n"
        "before = 'good' in sys.modules, 'json.decoder' in sys.modules\n"
        "import warnings, logging\n"
        "before += ('good' in sys.modules, [f for f in warnings.filters if f[1]])\n"
        "import good, json, importlib, pickle, copyreg\n"
        "assert good.loads == ['preloaded'] or not good.loads\n"
        "print(before, 'json.decoder' in sys.modules, [f[0] for f in warnings.filters if f[1]],\n"
        "      good.__spec__.loader is good.__loader__, 'exec_module' in vars(good.__loader__),\n"
        "      good.__spec__._initializing, importlib.reload(good) is good,\n"
        "      [type(f) for f in sys.meta_path if type(f).__name__ in ('WarmStart', 'Pacer')],\n"
        "      pickle.loads(pickle.dumps(json.JSONDecoder)) is json.JSONDecoder,\n"
        "      type(__import__('os').environ).__name__,\n"
        "      sorted(vars(__import__('os').environ)))\n"
    )
    (tmp_path / "train.py").write_text(script)
    with ranks.standby(agent, **path) as standby:
        assert standby.preload("json", "good") == {"ready": 2, "failed": {}}
        warm = release(agent, standby, tmp_path, script, **path)
    cold = agent.run("script", "train.py", cwd=tmp_path, **path)
    assert warm == cold
    assert "(False, False, False, []) True ['ignore'] True False False True [] True _Environ" in warm.out


def test_environment_of_the_rank_is_exact_and_what_modules_wrote_comes_with_their_import(
    agent: ranks.Agent, packages: Path, tmp_path: Path
) -> None:
    path = {"PYTHONPATH": str(packages), "GONE": "1"}
    script = (
        "import os\nnames = 'WRITTEN', 'DEFAULTED', 'LEARNED', 'GONE', 'NEW', 'FTLAUNCH_STANDBY_FD'\n"
        "print([os.environ.get(n) for n in names], os.system('test -z \"$LEARNED$WRITTEN$GONE\"'))\n"
        "import writer\nprint([os.environ.get(n) for n in names])\n"
    )
    with ranks.standby(agent, **path) as standby:
        assert standby.preload("writer", environment={"LEARNED": "1", "GONE": None})["failed"] == {}
        more = {"PYTHONPATH": str(packages), "NEW": "\udcff"}
        done = release(agent, standby, tmp_path, script, **more)
    first, second = done.out.splitlines()
    assert first == "[None, None, None, None, '\\udcff', None] 0", done.err
    assert second == "['w', 'd', None, None, '\\udcff', None]"


@pytest.mark.parametrize(
    ("name", "why", "exclude"),
    [
        ("threads", "starts a thread at import", ["threads"]),
        ("acting.inner", "starts a thread at import", ["acting"]),
        ("spawns", "leaves a child process at import", ["spawns"]),
        ("signals", "changes signal handling at import", ["signals"]),
        ("port_reader", "reads MASTER_PORT at import", ["port_reader"]),
        ("wants_port_reader", "reads MASTER_PORT at import", ["port_reader", "wants_port_reader"]),
        ("reads_after_walk", "reads MASTER_PORT at import", ["reads_after_walk"]),
        ("wants_mpi", "imports mpi4py, which acts at import", ["wants_mpi"]),
    ],
)
def test_module_that_acts_at_import_makes_the_standby_give_up(
    agent: ranks.Agent, packages: Path, name: str, why: str, exclude: list[str]
) -> None:
    with ranks.standby(agent, PYTHONPATH=str(packages), MASTER_PORT="1234") as standby:
        report = standby.preload("json", name, "good")
        assert report["unfit"] == why
        assert (report["failed"], report["exclude"]) == (dict.fromkeys(exclude, why), exclude)
        assert standby.process.poll() is None, "an order may be on its way"
    assert standby.process.wait(10) == 1
    for pid in procfs.carrying("FTLAUNCH_MARK=mark"):
        os.kill(pid, 9)
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        report = standby.preload("json", name, "good", exclude=exclude)
        assert report == {
            "ready": 2,
            "failed": {name: "not imported ahead: on the list of modules that act at import"},
        }


def test_module_that_fails_costs_only_itself(agent: ranks.Agent, packages: Path, tmp_path: Path) -> None:
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        report = standby.preload("fails", "exits", "no_such_module", "mpi4py.MPI", "good")
        assert report["ready"] == 1
        assert {name: why.partition(":")[0] for name, why in report["failed"].items()} == {
            "fails": "ZeroDivisionError",
            "exits": "SystemExit",
            "no_such_module": "ModuleNotFoundError",
            "mpi4py.MPI": "not imported ahead",
        }
        done = release(agent, standby, tmp_path, "import good\nprint('ran')\n", PYTHONPATH=str(packages))
    assert done == ranks.Finished(0, "ran\n", "")


@pytest.mark.parametrize(
    ("name", "more", "files"),
    [
        ("reader", {"RANK": "1"}, {}),
        ("good", {"PYTHONHASHSEED": "1"}, {}),
        ("good", {"OMP_NUM_THREADS": "7"}, {}),
        ("wants_local", {}, {"local_settings.py": "x = 1"}),
        ("good", {}, {"good.py": "mine = 1"}),
    ],
)
def test_what_cannot_look_like_a_cold_start_is_started_cold_in_the_same_process(
    agent: ranks.Agent, packages: Path, tmp_path: Path, name: str, more: dict[str, str], files: dict[str, str]
) -> None:
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    script = (
        f"import sys, os, {name}\nprint(vars({name}).get('seen'), hasattr({name}, 'mine'), hash('x') if "
        "'PYTHONHASHSEED' in os.environ else 0, getattr(vars().get('wants_local'), 'local_settings', 0) is None,\n"
        "      len(os.sched_getaffinity(0)), sys.argv, sys.orig_argv, sorted(k for k in os.environ if '_FD' in k))\n"
    )
    (tmp_path / "train.py").write_text(script)
    given = {"PYTHONPATH": str(packages), **more}
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        assert standby.preload("json", name)["failed"] == {}
        pid = standby.process.pid
        done = release(agent, standby, tmp_path, script, "a", **given)
    hello = [(message.kind, from_pid) for message, from_pid in agent.receive_with_pid()]
    assert hello == [(Kind.HELLO, pid)] * 2
    assert done == agent.run("script", "train.py", "a", cwd=tmp_path, **given)


def test_same_values_read_at_import_and_copies_do_not_matter(
    agent: ranks.Agent, packages: Path, tmp_path: Path
) -> None:
    with ranks.standby(agent, PYTHONPATH=str(packages), RANK="0", MASTER_PORT="1") as standby:
        assert standby.preload("reader", "copier", "wants_what_is_not_there")["failed"] == {}
        script = "import sys\nbefore = len(sys.modules)\nimport reader\nprint(reader.seen, 'copier' in sys.modules)\n"
        done = release(agent, standby, tmp_path, script, PYTHONPATH=str(packages), MASTER_PORT="2")
    assert done.out == "0 True\n"


def test_exit_handlers_of_preloaded_modules_run_also_when_the_rank_fails(
    agent: ranks.Agent, packages: Path, tmp_path: Path
) -> None:
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        assert standby.preload("registers")["failed"] == {}
        done = release(agent, standby, tmp_path, "import registers\n1/0\n", PYTHONPATH=str(packages))
    assert (done.code, done.out) == (1, "handler of a module\n")


def test_what_modules_print_at_import_is_not_the_ranks_output(
    agent: ranks.Agent, packages: Path, tmp_path: Path
) -> None:
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        standby.preload("prints")
        script = "import os, prints, sys\nprint('out')\nprint('err', file=sys.stderr)\nos.system('echo child')\n"
        done = release(agent, standby, tmp_path, script, PYTHONPATH=str(packages))
    assert done == ranks.Finished(0, "out\nchild\n", "err\n")


def test_limits_folder_and_hooks_are_put_back(agent: ranks.Agent, packages: Path, tmp_path: Path) -> None:
    script = (
        "import gc, os, resource, sys\n"
        "def look(): return (sys.getrecursionlimit(), gc.isenabled(), sys.path, sys.excepthook is sys.__excepthook__)\n"
        "print(os.umask(0o22), resource.getrlimit(resource.RLIMIT_CORE), os.getcwd(), look())\n"
        "import limits\nprint(look())\n"
    )
    (tmp_path / "train.py").write_text(script)
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        assert standby.preload("limits")["failed"] == {}
        warm = release(agent, standby, tmp_path, script, PYTHONPATH=str(packages))
    assert warm == agent.run("script", "train.py", cwd=tmp_path, PYTHONPATH=str(packages))


def test_order_during_the_preload_is_carried_out_after_it(agent: ranks.Agent, packages: Path, tmp_path: Path) -> None:
    """The agent gives none then; but what is said is not lost, and does not wait for any more pauses.

    With a share of 1 %, 0.15 s of CPU mean a pause of 1 s at the next import: there the order comes.
    """
    with ranks.standby(agent, PYTHONPATH=str(packages)) as standby:
        standby.send({"preload": ["slow", "good", "json"], "pace": {"share": 0.01}, "environment": {"L": "1"}})
        imported = packages / "slow.py.done"
        wait_until(lambda: imported.exists() and procfs.state(standby.process.pid) == "S")
        script = "import slow, good\nprint(slow.x, good.loads)\n"
        done = release(agent, standby, tmp_path, script, PYTHONPATH=str(packages))
    assert (done.code, done.out) == (0, "1 []\n"), done.err


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_modules_see_the_cpus_of_a_cold_start_and_what_one_makes_of_them_comes_with_its_import(
    agent: ranks.Agent, packages: Path, tmp_path: Path, share: float
) -> None:
    """The number of threads of OpenMP and BLAS is decided when their library is loaded."""
    path = {"PYTHONPATH": str(packages)}
    script = "import os\ndef cpus(): return sorted(os.sched_getaffinity(0))\n"
    script += "print(cpus())\nimport counts\nprint(counts.cpus)\nimport binds\nprint(cpus())\n"
    (tmp_path / "train.py").write_text(script)
    with ranks.standby(agent, **path) as standby:
        assert standby.preload("counts", "binds", pace={"share": share}) == {"ready": 2, "failed": {}}
        warm = release(agent, standby, tmp_path, script, **path)
    cold = agent.run("script", "train.py", cwd=tmp_path, **path)
    everywhere = sorted(os.sched_getaffinity(0))
    assert cold.out.splitlines() == [str(everywhere), str(everywhere), str(everywhere[:1])]
    assert warm == cold


@pytest.mark.parametrize("name", ["slow", "slow_and_unfit"])
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_order_that_comes_during_an_import_is_never_lost(
    agent: ranks.Agent, packages: Path, tmp_path: Path, name: str, share: float
) -> None:
    """The agent has hung up when the module is imported at last, and counts the process as a rank."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (packages / "slow.py").write_text(f"import os\nif os.path.exists({str(gate)!r}): open({str(gate)!r}).close()\n")
    (packages / "slow_and_unfit.py").write_text("import slow, threads, signals\n")
    path = {"PYTHONPATH": str(packages)}
    with ranks.standby(agent, **path) as standby:
        standby.send({"preload": [name, "json"], "pace": {"share": share}})
        # Opens once the other side is at it.
        with open(gate, "w"):
            gate.unlink()
            (tmp_path / "train.py").write_text(f"import {name}, sys\nprint('ran', sys.argv[1:])\nsys.exit(3)\n")
            standby.go("script", "train.py", "x", cwd=tmp_path, **path)
        done = ranks.finish(standby.process)
    assert (done.code, done.out) == (3, "ran ['x']\n"), done.err


@pytest.mark.skipif(bool(ctypes.util.find_library("cuda")), reason="there is a CUDA driver: see test_cuda_job.py")
@pytest.mark.parametrize(("device", "warm"), [("0", True), ("1", False)])
def test_without_a_driver_there_is_no_context_and_another_choice_of_devices_starts_cold(
    agent: ranks.Agent, tmp_path: Path, device: str, warm: bool
) -> None:
    with ranks.standby(agent, CUDA_VISIBLE_DEVICES="0") as standby:
        report = standby.preload("json", cuda=True)
        assert report == {"ready": 1, "failed": {}, "cuda": "no CUDA driver is found (libcuda.so.1)"}
        script = (
            "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], '--standby' in open('/proc/self/cmdline').read())"
        )
        done = release(agent, standby, tmp_path, script, CUDA_VISIBLE_DEVICES=device)
    assert done == ranks.Finished(0, f"{device} {warm}\n", "")


def test_nothing_to_preload(agent: ranks.Agent, tmp_path: Path) -> None:
    with ranks.standby(agent) as standby:
        assert standby.preload() == {"ready": 0, "failed": {}}
        done = release(agent, standby, tmp_path, "import sys\nprint(sys.argv)\n", "x", "--", "")
    assert done == ranks.Finished(0, "['train.py', 'x', '--', '']\n", "")


def test_released_standby_runs_binaries_and_modules(agent: ranks.Agent, tmp_path: Path) -> None:
    for kind, target in (("binary", "sh"), ("module", "tell")):
        (tmp_path / "tell.py").write_text("import sys\nprint(sys.argv[1:], __name__)\n")
        with ranks.standby(agent) as standby:
            standby.preload("json")
            standby.go(kind, target, "-c", "echo $0 $RANK", cwd=tmp_path)
            done = ranks.finish(standby.process)
        assert done.out == {"binary": "sh 0\n", "module": "['-c', 'echo $0 $RANK'] __main__\n"}[kind], done.err


def test_working_directory_that_is_gone_costs_one_line(agent: ranks.Agent, tmp_path: Path) -> None:
    with ranks.standby(agent) as standby:
        standby.preload("json")
        standby.go("script", "train.py", cwd=tmp_path / "gone")
        done = ranks.finish(standby.process)
    assert (done.code, done.err) == (
        1,
        f"ftlaunch: cannot enter the working directory '{tmp_path}/gone': No such file or directory\n",
    )


def test_standby_ends_with_its_agent(agent: ranks.Agent) -> None:
    with ranks.standby(agent) as standby:
        standby.preload("json")
    assert standby.process.wait(10) == 1, "0 would be a rank's success"
    with ranks.standby(agent) as standby:
        standby.preload("json")
        os.close(agent.death_write)
        assert standby.process.wait(10) == -9


def test_standby_refuses_garbage(agent: ranks.Agent) -> None:
    for garbage in (b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]", b"\x01\x00\x00\x00{"):
        with ranks.standby(agent) as standby:
            standby._connection.sendall(garbage)
            assert standby.process.wait(10) == 1
    child = agent.start("--standby")
    assert (ranks.finish(child).code, frames.MAX_BYTES) == (2, 8 << 20)


def test_learned_modules_of_a_released_standby_are_those_of_a_cold_start(agent: ranks.Agent, tmp_path: Path) -> None:
    script = "import json, logging, colorsys\nfrom ftlaunch import heartbeat\nheartbeat.beat(1)\n"
    (tmp_path / "train.py").write_text(script)

    def learned() -> list[str]:
        (told,) = [message for message in agent.receive() if message.kind is Kind.MODULES]
        return sorted(told.payload["names"])

    agent.run("script", "train.py", cwd=tmp_path)
    cold = learned()
    with ranks.standby(agent) as standby:
        report = standby.preload(*cold)
        assert (report["ready"], report["failed"]) == (len(cold), {})
        release(agent, standby, tmp_path, script)
    warm = learned()
    assert set(cold) <= set(warm)
