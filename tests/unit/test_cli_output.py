"""What --help, --version and --print-config say, and what the command line costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ftlaunch.launcher import __version__
from ftlaunch.launcher.cli import command_line, options
from support.machines import machine


def printed(arguments: list[str], environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        command_line.parse(arguments, environ, machine())
    assert end.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def row(page: str, name: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.split(" ")[0] == name)
    return line.split(None, 2)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--he"], ["--nproc-per-node", "2", "-h", "train.py"]])
def test_help_has_every_option_in_its_group(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(arguments, {}, capsys)
    assert page.startswith("Usage: ftlaunch [OPTIONS] SCRIPT [ARGUMENTS]...")
    for group in options.GROUPS:
        assert f"\n{group}:\n" in page
    for option in options.OPTIONS:
        assert f"--{option.name}" in page
        if option.env:
            assert option.env[0] in page
    assert max(len(line) for line in page.splitlines()) <= 80


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(["--version"], {}, capsys) == f"ftlaunch {__version__}\n"


def test_help_after_the_script_is_the_scripts() -> None:
    assert command_line.parse(["-m", "train", "--help"], {}, machine()).config.command.args == ("--help",)


def test_print_config_says_where_each_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"PET_MAX_RESTARTS": "3", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "40", "PET_TEE": "1"}
    arguments = ["--print-config", "--nproc", "auto", "--tee", "3", "-m", "train", "--lr", ""]
    page = printed(arguments, environ, capsys)
    assert row(page, "nproc-per-node") == [
        "nproc-per-node", "8", "flag --nproc-per-node: auto, and this node has 8 usable CPUs"
    ]  # fmt: skip
    assert row(page, "max-restarts")[1:] == ["3", "environment PET_MAX_RESTARTS"]
    assert row(page, "shutdown-timeout")[1:] == ["40", "environment TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert row(page, "tee")[1:] == ["3", "flag --tee"]
    assert row(page, "kill-grace")[1:] == ["2", "default"]
    assert row(page, "rdzv-backend")[1:] == ["local", "default: one node"]
    assert "\nargument 2                      ''\n" in page
    for option in options.OPTIONS:
        if option.group != options.GENERAL:
            assert row(page, option.name)


def test_print_config_needs_no_script_and_escapes_what_is_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    raw = b"\xff\n".decode("utf-8", "surrogateescape")
    assert "(no script given)" in printed(["--print-config"], {}, capsys)
    page = printed(["--print-config", "-m", "train", raw], {}, capsys)
    assert r"\udcff\n" in page


PRINT = (
    f"{sys.executable} -c 'import sys; from ftlaunch.launcher.cli import command_line\n"
    "try: command_line.parse(sys.argv[1:], {})\n"
    "except command_line.FtlaunchError as error: sys.exit(str(error))' --print-config -m train é "
)


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        ("%s | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("%s >&-", 0, ""),
        ("PYTHONIOENCODING=ascii %s >/dev/null", 0, ""),
        ("%s >/dev/full", 1, "stdout cannot be written to: No space left on device\n"),
    ],
)
def test_a_stdout_that_takes_nothing(command: str, code: int, complaint: str) -> None:
    line = command % PRINT
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, complaint)


def test_neither_torch_nor_anything_heavy_is_imported() -> None:
    code = (
        "import sys; from ftlaunch.launcher.cli import command_line\n"
        "command_line.parse(['--nproc-per-node', '2', '--tee', '3', '-m', 'train'], {})\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "click" in loaded
    assert not loaded & {"torch", "grpc", "numpy", "psutil", "rich", "pynvml", "asyncio", "difflib", "logging"}
