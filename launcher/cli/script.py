"""What every rank executes: the script is looked at before anything is spawned, its code is not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ftlaunch.launcher.cli.machine import Machine
from ftlaunch.launcher.cli.settings import Settings
from ftlaunch.launcher.cli.values import show
from ftlaunch.launcher.config import CommandConfig, CommandKind
from ftlaunch.launcher.errors import UsageError

_USAGE = "ftlaunch [OPTIONS] SCRIPT [ARGUMENTS...]"


def command(
    settings: Settings, script: str | None, args: Sequence[str], environ: Mapping[str, str], machine: Machine
) -> CommandConfig:
    """The command of the ranks. Raises :class:`UsageError` for what could only fail in every one of them."""
    kind = _kind(settings)
    if not script:
        what = "module" if kind is CommandKind.MODULE else "training script"
        raise UsageError(f"no {what} given: {_USAGE} (ftlaunch --help lists the options)")
    _CHECKS[kind](script, environ)
    python = interpreter(settings, environ, machine)
    return CommandConfig(kind, script, tuple(args), python, ("-u", *interpreter_flags(machine.orig_argv)))


def _kind(settings: Settings) -> CommandKind:
    if settings["run-path"] and settings["module"]:
        raise UsageError(
            f"{settings.spelled('run-path')} and {settings.spelled('module')} exclude each other: leave one out"
        )
    if settings["run-path"]:
        # Every script runs inside the rank's bootstrap anyway, which is what torchrun means by it.
        return CommandKind.SCRIPT
    if settings["no-python"] and settings["module"]:
        raise UsageError(
            f"{settings.spelled('no-python')} and {settings.spelled('module')} exclude each other: leave one out"
        )
    if settings["no-python"]:
        return CommandKind.BINARY
    return CommandKind.MODULE if settings["module"] else CommandKind.SCRIPT


def _check_script(script: str, environ: Mapping[str, str]) -> None:
    if not os.path.exists(script):
        raise UsageError(f"training script {show(script)} does not exist in {_here(script)}{_alternative(script)}")
    if os.path.isdir(script):
        if not os.path.exists(os.path.join(script, "__main__.py")):
            raise UsageError(f"training script {show(script)} is a folder without __main__.py: name a file, or add one")
    elif not os.access(script, os.R_OK):
        raise UsageError(
            f"training script {show(script)} is not readable for user {os.geteuid()}: check its permissions"
        )


def _here(path: str) -> str:
    return show(os.path.dirname(path)) if os.path.isabs(path) else show(_working_directory())


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the working directory was deleted: change to one that exists") from None


def _alternative(script: str) -> str:
    """A guess at what was meant, in words."""
    parts = script.split(".")
    path = os.path.join(*parts) if all(parts) and len(parts) > 1 else ""
    if path and (os.path.exists(path + ".py") or os.path.exists(os.path.join(path, "__init__.py"))):
        return f"; for the module of that name: -m {script}"
    import difflib

    folder, name = os.path.split(script)
    try:
        close = difflib.get_close_matches(name, os.listdir(folder or "."), n=1, cutoff=0.75)
    except OSError:
        return ""
    return f"; did you mean {show(os.path.join(folder, close[0]))}?" if close else ""


def _check_module(script: str, environ: Mapping[str, str]) -> None:
    """Only the name: importing it, or its parents, would run the user's code here."""
    if "/" in script or (script.endswith(".py") and os.path.isfile(script)):
        name = script.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"-m takes a module name, not the path {show(script)}: -m {name}, or leave out -m")


def _check_binary(script: str, environ: Mapping[str, str]) -> None:
    found = which(script, environ)
    if found is not None:
        return
    if os.path.isdir(script):
        raise UsageError(f"--no-python cannot execute {show(script)}: it is a folder")
    if os.path.isfile(script):
        if os.access(script, os.X_OK):
            raise UsageError(
                f"--no-python looks {show(script)} up on PATH, where it is not: write {show('./' + script)}"
            )
        raise UsageError(f"--no-python cannot execute {show(script)}: chmod +x it, or leave out --no-python")
    where = f"does not exist in {_here(script)}" if "/" in script else "is not on PATH"
    raise UsageError(f"--no-python cannot execute {show(script)}: it {where}")


_CHECKS = {
    CommandKind.SCRIPT: _check_script,
    CommandKind.MODULE: _check_module,
    CommandKind.BINARY: _check_binary,
}


def which(name: str, environ: Mapping[str, str]) -> str | None:
    """The executable file that execvp(3) would take for this name, or ``None``."""
    folders = [""] if "/" in name else environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name) if folder else name
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def interpreter(settings: Settings, environ: Mapping[str, str], machine: Machine) -> str:
    """``--python``, PYTHON_EXEC, or the one that runs ftlaunch. Notes one that is outside the active venv."""
    wanted = settings["python"]
    if not wanted:
        if not machine.executable:
            raise UsageError("this process does not know its own interpreter: give one with --python PATH")
        settings.derive("python", machine.executable, machine.executable, "the interpreter of ftlaunch")
        found = machine.executable
    else:
        resolved = which(wanted, environ)
        if resolved is None:
            raise settings.error("python", "must be an executable interpreter, as a path or on PATH")
        found = resolved
    _note_other_venv(found, environ, settings.notes)
    return found


def _note_other_venv(python: str, environ: Mapping[str, str], notes: list[str]) -> None:
    venv = environ.get("VIRTUAL_ENV")
    if not venv:
        return
    # The folder is resolved, not the file: a venv's python is a link to the one it was made from.
    folder = os.path.realpath(os.path.dirname(os.path.abspath(python)))
    if os.path.commonpath([folder, os.path.realpath(venv)]) != os.path.realpath(venv):
        notes.append(
            f"ranks run with {python}, which is outside the active virtual environment {venv}; "
            "install ftlaunch there, or give --python"
        )


def interpreter_flags(orig_argv: Sequence[str]) -> tuple[str, ...]:
    """The ``-X`` and ``-W`` flags an interpreter was started with (python(1)), for starting others alike."""
    flags: list[str] = []
    position = 1
    while position < len(orig_argv):
        argument = orig_argv[position]
        position += 1
        if argument == "--check-hash-based-pycs":
            position += 1
            continue
        if not argument.startswith("-") or argument in {"-", "--"}:
            break
        if argument.startswith("--"):
            continue
        letter, value = _first_with_value(argument)
        if letter in {"c", "m"}:
            break
        if letter and not value:
            value = orig_argv[position] if position < len(orig_argv) else ""
            position += 1
        if letter:
            flags.append(f"-{letter}{value}")
    return tuple(flags)


def _first_with_value(cluster: str) -> tuple[str, str]:
    """In letters run together, the first that takes a value, and the rest of the argument."""
    for index, letter in enumerate(cluster[1:], start=1):
        if letter in "cmXW":
            return letter, cluster[index + 1 :]
    return "", ""
