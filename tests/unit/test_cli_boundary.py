"""Where the launcher's options end: nothing behind the script is read, changed or lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlaunch.launcher.cli import argv, command_line
from ftlaunch.launcher.errors import UsageError
from support.machines import machine

HEADS = [
    [],
    ["--nproc-per-node", "2"],
    ["--nproc_per_node=2", "--standalone"],
    ["-r3", "-t", "1"],
    ["--role", "-1"],
    ["--rdzv-id", ""],
    ["--"],
    ["--standalone", "--"],
]


def names(scanned: argv.Scanned) -> list[str]:
    return [found.token() for found in scanned.given]


@pytest.mark.parametrize("head", HEADS, ids=" ".join)
@given(
    rest=st.lists(
        st.text(st.characters(exclude_characters="\0")) | st.sampled_from(["--", "-h", "", "--nproc-per-node", "-m"])
    )
)
def test_script_arguments_pass_as_they_are(head: list[str], rest: list[str]) -> None:
    scanned = argv.scan([*head, "train.py", *rest])
    assert scanned.script == "train.py"
    assert scanned.script_args == tuple(rest)


@settings(max_examples=25)
@given(rest=st.lists(st.text(st.characters(exclude_characters="\0"))))
def test_script_arguments_reach_the_config(rest: list[str]) -> None:
    parsed = command_line.parse(["--nproc-per-node", "2", "-m", "train", *rest], {}, machine())
    assert parsed.config.command.args == tuple(rest)


def test_bytes_that_are_not_text_survive() -> None:
    raw = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert argv.scan(["train.py", raw]).script_args == (raw,)


@pytest.mark.parametrize(
    ("arguments", "expected", "script"),
    [
        (["--nproc", "2", "t.py"], ["--nproc-per-node=2"], "t.py"),
        (["--nproc=2", "t.py"], ["--nproc-per-node=2"], "t.py"),
        (["--max", "1", "t.py"], ["--max-restarts=1"], "t.py"),
        (["--stand", "t.py"], ["--standalone"], "t.py"),
        (["--run", "t.py"], ["--run-path"], "t.py"),
        (["--log_d", "d", "t.py"], ["--log-dir=d"], "t.py"),
        (["--standby", "off", "t.py"], ["--standby=off"], "t.py"),
        (["-m", "pkg.train"], ["--module"], "pkg.train"),
        (["-mr3", "pkg.train"], ["--module", "--redirects=3"], "pkg.train"),
        (["-r=3", "t.py"], ["--redirects=3"], "t.py"),
        (["-t", "0:1", "t.py"], ["--tee=0:1"], "t.py"),
        (["--max-restarts", "-1", "t.py"], ["--max-restarts=-1"], "t.py"),
        (["--log-dir=-x", "t.py"], ["--log-dir=-x"], "t.py"),
        (["--tee", "1", "--tee", "3", "t.py"], ["--tee=1", "--tee=3"], "t.py"),
        (["--", "-odd-name.py"], [], "-odd-name.py"),
        (["-"], [], "-"),
        ([""], [], ""),
        (["--standalone"], ["--standalone"], None),
        ([], [], None),
    ],
)
def test_options_before_the_script(arguments: list[str], expected: list[str], script: str | None) -> None:
    scanned = argv.scan(arguments)
    assert names(scanned) == expected
    assert scanned.script == script


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nnproc", "2", "t.py"], "unknown option '--nnproc'"),
        (["--nproc-per-nod3", "2", "t.py"], "did you mean --nproc-per-node?"),
        (["--kill-grac", "2", "t.py"], "did you mean --kill-grace?"),
        (["--hang", "2", "t.py"], "did you mean --hang-"),
        (["--lr", "0.1", "t.py"], "options of the training script go after the script"),
        (["-x", "t.py"], "unknown option '-x'"),
        (["--rdzv", "x", "t.py"], "could be --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"),
        (["--n", "2", "t.py"], "ambiguous option '--n'"),
        (["--=2", "t.py"], "unknown option '--'"),
        (["--tee"], "--tee needs a value: --tee 0-3|RANK:0-3"),
        (["--tee", "--standalone", "t.py"], "--tee needs a value"),
        (["-r"], "-r needs a value"),
        (["--standalone=1", "t.py"], "--standalone takes no value, but '1' was given"),
        (["--a\nb", "t.py"], r"unknown option '--a\nb'"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        argv.scan(arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_no_option_of_ours_can_be_abbreviated() -> None:
    for name in ("--kill", "--omp", "--section", "--print-conf", "--versio", "--signal-s"):
        with pytest.raises(UsageError, match="unknown option"):
            argv.scan([name, "1", "t.py"])
