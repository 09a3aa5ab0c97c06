"""A script cannot tell how it was started: directly, by the bootstrap, or by a released standby."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support import ranks

PROBE = Path(__file__).parents[1] / "support" / "probes" / "surroundings.py"
# What a training script's imports look like: standard and installed, one with warning filters and loggers of its own.
PRELOADED = ("json", "random", "logging.config", "decimal", "concurrent.futures.thread", "colorsys", "click")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One probe, as a script, a module of a package, a folder and a zip file; with a module beside it."""
    shutil.copy(PROBE, tmp_path / "probe.py")
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").touch()
    shutil.copy(PROBE, tmp_path / "pkg" / "probe.py")
    shutil.copy(PROBE, tmp_path / "pkg" / "__main__.py")
    with zipfile.ZipFile(tmp_path / "probe.zip", "w") as archive:
        archive.write(PROBE, "__main__.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "pkg" / "probe.py")
    return tmp_path


def plain(folder: Path, kind: str, target: str) -> dict[str, Any]:
    done = ranks.run_plain([*(["-m"] if kind == "module" else []), target, "--", "-h", ""], cwd=folder)
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def differences(expected: dict[str, Any], done: ranks.Finished) -> dict[str, Any]:
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    return {key: (expected[key], seen[key]) for key in expected if expected[key] != seen[key]}


TARGETS = [
    ("script", "probe.py"),
    ("script", "./probe.py"),
    ("script", "../{name}/pkg/probe.py"),
    ("script", "{folder}/probe.py"),
    ("script", "link.py"),
    ("script", "pkg"),
    ("script", "probe.zip"),
    ("module", "probe"),
    ("module", "pkg.probe"),
    ("module", "pkg"),
]


@pytest.mark.parametrize(("kind", "target"), TARGETS)
def test_bootstrap_shows_the_script_what_a_direct_start_shows(
    agent: ranks.Agent, folder: Path, kind: str, target: str
) -> None:
    target = target.format(folder=folder, name=folder.name)
    done = agent.run(kind, target, "--", "-h", "", cwd=folder)
    found = differences(plain(folder, kind, target), done)
    assert found == {}


@pytest.mark.parametrize(("kind", "target"), [TARGETS[0], TARGETS[5], TARGETS[6], TARGETS[8]])
def test_released_standby_shows_the_script_what_a_direct_start_shows(
    agent: ranks.Agent, folder: Path, kind: str, target: str
) -> None:
    with ranks.standby(agent) as standby:
        report = standby.preload(*PRELOADED, environment={"FROM_THE_SCRIPT": "1"})
        assert report == {"ready": len(PRELOADED), "failed": {}}
        standby.go(kind, target, "--", "-h", "", cwd=folder)
        done = ranks.finish(standby.process)
    assert differences(plain(folder, kind, target), done) == {}


@pytest.mark.parametrize("options", [["-I"], ["-O", "-W", "error"], ["-X", "dev"], ["-bb", "-S"]])
def test_interpreter_options_are_respected(agent: ranks.Agent, folder: Path, options: list[str]) -> None:
    agent.interpreter_args = ("-u", *options)
    (folder / "options.py").write_text(
        "import sys, _warnings\n"
        "print(sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.orig_argv, len(_warnings.filters))\n"
    )
    assert agent.run("script", "options.py", cwd=folder) == ranks.run_plain([*options, "options.py"], cwd=folder)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P is new in 3.11")
def test_safe_path_keeps_the_script_folder_out(agent: ranks.Agent, folder: Path) -> None:
    agent.interpreter_args = ("-P",)
    (folder / "options.py").write_text("import sys; print(sys.path[0])")
    done = agent.run("script", "options.py", cwd=folder)
    assert done.code == 0
    assert str(folder) not in done.out


def test_modules_beside_the_script_win_over_everything_of_ours(agent: ranks.Agent, tmp_path: Path) -> None:
    for name in (
        "launcher",
        "heartbeat",
        "json",
        "traceback",
        "socket",
        "client",
        "hooks",
        "wire",
        "worker",
        "compact",
    ):
        (tmp_path / f"{name}.py").write_text(f"mine = {name!r}")
    names = [path.stem for path in tmp_path.iterdir()]
    (tmp_path / "train.py").write_text(
        f"import {', '.join(sorted(names))}\nprint([sys.mine for sys in ({', '.join(sorted(names))},)])\n1/0"
    )
    done = agent.run("script", "train.py", cwd=tmp_path)
    assert done.out.split() == str(sorted(names)).split()
    assert "ZeroDivisionError" in done.err
    assert any(message.payload.get("type") == "ZeroDivisionError" for message in agent.receive(1.0))


def test_standby_starts_cold_when_the_script_shadows_a_preloaded_module(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("mine = True")
    (tmp_path / "train.py").write_text("import colorsys, os\nprint(colorsys.mine, os.getpid())")
    with ranks.standby(agent) as standby:
        standby.preload("colorsys", "json")
        standby.go("script", "train.py", cwd=tmp_path)
        done = ranks.finish(standby.process)
    # Same process, and still tied to the agent.
    assert done.out.split() == ["True", str(standby.process.pid)]


def test_heartbeat_is_importable_where_ftlaunch_is_not_installed(agent: ranks.Agent, tmp_path: Path) -> None:
    agent.interpreter_args = ("-S",)
    (tmp_path / "train.py").write_text(
        "import ftlaunch.heartbeat, sys\n"
        "from ftlaunch.heartbeat import beat\n"
        "beat(7)\n"
        "print(ftlaunch.heartbeat.__file__, 'PYTHONPATH' in __import__('os').environ)\n"
    )
    done = agent.run("script", "train.py", cwd=tmp_path)
    assert done.out.split() == [str(Path(ranks.BOOTSTRAP).with_name("__init__.py")), "False"], done.err
    assert [message.step for message in agent.receive() if message.kind == 2] == [7]


def test_spawned_and_forked_children_find_the_main_module(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing, os, sys\n"
        "class Payload:\n"
        "    def __init__(self, value): self.value = value\n"
        "def work(payload):\n"
        "    from ftlaunch import heartbeat\n"
        "    heartbeat.beat(99)\n"
        "    return Payload(payload.value + 1)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'forkserver', 'fork'):\n"
        "        with multiprocessing.get_context(method).Pool(1) as pool:\n"
        "            print(method, pool.map(work, [Payload(1)])[0].value)\n"
    )
    done = agent.run("script", "train.py", cwd=tmp_path)
    assert done.out.split() == ["spawn", "2", "forkserver", "2", "fork", "2"], done.err
    assert [message for message in agent.receive() if message.kind == 2] == []


def test_finalisation_runs_in_the_usual_order(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import atexit, threading, sys\n"
        "class Last:\n"
        "    def __del__(self): print('del')\n"
        "last = Last()\n"
        "go = threading.Event()\n"
        "def late():\n"
        "    go.wait(); print('thread', '__file__' in globals())\n"
        "atexit.register(lambda: print('first registered'))\n"
        "atexit.register(lambda: print('second registered', '__file__' in globals()))\n"
        "threading.Thread(target=late).start()\n"
        "threading.Timer(0.05, go.set).start()\n"
        "print('end of script')\n"
        "if len(sys.argv) > 1: raise RuntimeError('x')\n"
    )
    assert agent.run("script", "train.py", cwd=tmp_path) == ranks.run_plain(["train.py"], cwd=tmp_path)
    # A failed rank is not taken apart any more, the rest of its end is the same.
    failed, plain = agent.run("script", "train.py", "x", cwd=tmp_path), ranks.run_plain(["train.py", "x"], cwd=tmp_path)
    assert (failed.code, failed.err) == (plain.code, plain.err)
    assert failed.out == plain.out.removesuffix("del\n")


def test_compiled_script_and_odd_encodings(agent: ranks.Agent, tmp_path: Path) -> None:
    import py_compile

    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nprint(ascii('é'), __file__)\n".encode("latin-1"))
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\r\nprint(2)\r\n")
    (tmp_path / "späce name.py").write_text("print(ascii(__file__))\n")
    py_compile.compile(str(tmp_path / "bom.py"), cfile=str(tmp_path / "done.pyc"), doraise=True)
    for name in ("latin.py", "bom.py", "späce name.py", "done.pyc"):
        assert agent.run("script", name, cwd=tmp_path) == ranks.run_plain([name], cwd=tmp_path)


def test_affinity_is_applied_and_private_variables_do_not_reach_children(agent: ranks.Agent, tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys\nprint(os.sched_getaffinity(0), flush=True)\nsubprocess.run(['env'])\n"
    )
    done = agent.run("script", "train.py", cwd=tmp_path, FTLAUNCH_AFFINITY=str(cpu))
    first, *rest = done.out.splitlines()
    assert first == str({cpu})
    assert {line.partition("=")[0] for line in rest if line.startswith("FTLAUNCH_")} == {
        "FTLAUNCH_SOCKET",
        "FTLAUNCH_GENERATION",
        "FTLAUNCH_RUN_ID",
        "FTLAUNCH_MARK",
        "FTLAUNCH_TEST_SESSION",
    }


def test_affinity_that_is_refused_costs_one_line(agent: ranks.Agent, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    done = agent.run("script", "train.py", cwd=tmp_path, FTLAUNCH_AFFINITY="4000")
    assert (done.code, done.out) == (0, "ran\n")
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("ftlaunch: cannot bind this rank to CPUs 4000: ")
