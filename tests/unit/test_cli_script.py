"""The script is looked at before anything is spawned, the interpreter is the right one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ftlaunch.launcher.cli import command_line, script
from ftlaunch.launcher.config import CommandConfig, CommandKind
from ftlaunch.launcher.errors import UsageError
from support.machines import machine


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__main__.py").write_text("")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/train.py").write_text("raise SystemExit('imported by the launcher')")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


def command(arguments: list[str], environ: dict[str, str] | None = None, **facts: object) -> CommandConfig:
    return command_line.parse(arguments, environ or {}, machine(**facts)).config.command  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "environ", "kind", "target"),
    [
        (["train.py", "-m"], {}, CommandKind.SCRIPT, "train.py"),
        (["app"], {}, CommandKind.SCRIPT, "app"),
        (["-m", "lib.train"], {}, CommandKind.MODULE, "lib.train"),
        (["lib.nowhere"], {"PET_MODULE": "1"}, CommandKind.MODULE, "lib.nowhere"),
        (["--no-python", "./run.sh"], {}, CommandKind.BINARY, "./run.sh"),
        (["--no-python", "sh", "-c", "true"], {"PATH": "/usr/bin:/bin"}, CommandKind.BINARY, "sh"),
        (["--run-path", "train.py"], {}, CommandKind.SCRIPT, "train.py"),
        (["--run-path", "--no-python", "train.py"], {}, CommandKind.SCRIPT, "train.py"),
    ],
)
def test_kinds(arguments: list[str], environ: dict[str, str], kind: CommandKind, target: str) -> None:
    found = command(arguments, environ)
    assert (found.kind, found.target) == (kind, target)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no training script given: ftlaunch [OPTIONS] SCRIPT [ARGUMENTS...]"),
        (["--nproc-per-node", "2"], "no training script given"),
        (["-m"], "no module given"),
        ([""], "no training script given"),
        (["trian.py"], "does not exist in"),
        (["trian.py"], "did you mean 'train.py'?"),
        (["lib.train"], "for the module of that name: -m lib.train"),
        (["/no/such/train.py"], "'/no/such/train.py' does not exist in '/no/such'"),
        (["lib"], "is a folder without __main__.py"),
        (["a\nb.py"], r"'a\nb.py' does not exist"),
        (["-m", "lib/train.py"], "-m takes a module name, not the path 'lib/train.py': -m lib.train"),
        (["-m", "train.py"], "-m takes a module name, not the path 'train.py': -m train, or leave out -m"),
        (["--no-python", "-m", "x"], "--no-python and --module exclude each other"),
        (["--run-path", "-m", "x"], "--run-path and --module exclude each other"),
        (["--no-python", "./train.py"], "chmod +x it, or leave out --no-python"),
        (["--no-python", "run.sh"], "write './run.sh'"),
        (["--no-python", "./lib"], "it is a folder"),
        (["--no-python", "./nothing"], "it does not exist in"),
        (["--no-python", "no-such-tool"], "it is not on PATH"),
        (["--python", "no-such-python", "train.py"], "--python must be an executable interpreter"),
        (["--python", "./train.py", "train.py"], "--python must be an executable interpreter"),
    ],
)
def test_what_could_only_fail(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        command(arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unreadable_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may read everything, so the answer of access(2) is played.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UsageError, match="is not readable for user"):
        script._check_script("train.py", {})


def test_a_deleted_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the working directory was deleted"):
        command(["train.py"])


def test_a_module_is_never_imported() -> None:
    command(["-m", "lib.train"])
    assert "lib" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ([], {}, "/usr/bin/env"),
        ([], {"PYTHON_EXEC": "/bin/sh"}, "/bin/sh"),
        ([], {"PYTHON_EXEC": "sh", "PATH": "/nowhere:/bin"}, "/bin/sh"),
        (["--python", "/bin/sh"], {"PYTHON_EXEC": "/bin/false"}, "/bin/sh"),
        ([], {"FTLAUNCH_PYTHON": "/bin/sh", "PYTHON_EXEC": "/bin/false"}, "/bin/sh"),
    ],
)
def test_interpreter(arguments: list[str], environ: dict[str, str], expected: str) -> None:
    assert command([*arguments, "train.py"], environ).interpreter == expected


def test_an_interpreter_outside_the_active_venv_is_noted(folder: Path) -> None:
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").symlink_to("/bin/sh")

    def notes(python: str) -> tuple[str, ...]:
        environ = {"VIRTUAL_ENV": str(folder / "venv")}
        return command_line.parse(["--python", python, "train.py"], environ, machine()).notes

    (note,) = notes("/bin/sh")
    assert "/bin/sh" in note
    assert str(folder / "venv") in note
    assert notes(str(folder / "venv/bin/python")) == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m ftlaunch.launcher train.py -X dev", ()),
        ("python /usr/bin/ftlaunch -X dev", ()),
        ("python -X dev -W error -m ftlaunch.launcher", ("-Xdev", "-Werror")),
        ("python -Xdev -Werror::UserWarning -u script", ("-Xdev", "-Werror::UserWarning")),
        ("python -IuX importtime -Bm ftlaunch.launcher -W x", ("-Ximporttime",)),
        ("python --check-hash-based-pycs always -Wd x", ("-Wd",)),
        ("python -c code -X dev", ()),
        ("python -X", ("-X",)),
        ("", ()),
    ],
)
def test_interpreter_flags(line: str, expected: tuple[str, ...]) -> None:
    assert script.interpreter_flags(line.split()) == expected


def test_interpreter_flags_reach_the_ranks() -> None:
    found = command(["train.py"], orig_argv=("python", "-Xdev", "ftlaunch"))
    assert found.interpreter_args == ("-u", "-Xdev")
