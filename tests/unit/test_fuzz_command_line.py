"""Any command line and any environment: a configuration, or one line that says what is wrong, and code 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftlaunch.launcher.cli import command_line, options
from ftlaunch.launcher.config import Config
from ftlaunch.launcher.errors import FtlaunchError
from support.machines import machine

HOST = machine()
VARIABLES = sorted({variable for option in options.OPTIONS for variable in option.env})
WORDS = """
    - -- 0 -1 1 2 1:2 2:1 1e999 nan inf -inf 1e-400 \u0663 \u00bd \ud800 \x1b[31m a=b a=b,a=c , : etcd c10d static on
    off 0:3,1:x 1h 5m 127.0.0.1:99999 127.0.0.1:2379 [::1 http:// GPU-x ( [a {resume} SIGKILL SIGUSR1 shared local auto
"""
ODD = st.sampled_from(["", " ", "a\nb", "9" * 400, "/nonexistent/" * 40, *WORDS.split()])
VALUES = ODD | st.text(st.characters(exclude_characters="\0"), max_size=12)


def outcome(argv: Sequence[str], environ: Mapping[str, str]) -> Config | str:
    """The configuration, or the complaint."""
    try:
        return command_line.parse(argv, environ, HOST).config
    except FtlaunchError as error:
        assert error.exit_code == 2
        return str(error)
    except SystemExit as end:
        # Help, version, and other questions that are answered at once.
        assert end.code == 0
        return "answered"


def require_one_line(found: Config | str) -> None:
    if isinstance(found, str):
        assert found and len(found.splitlines()) == 1, found
        assert found.isprintable(), found
        assert len(found) < 2000


def spelled(option: options.Option, value: str, joined: bool) -> list[str]:
    if option.flag:
        return [f"--{option.name}"]
    return [f"--{option.name}={value}"] if joined else [f"--{option.name}", value]


GOOD = st.builds(spelled, st.sampled_from(options.OPTIONS), VALUES, st.booleans())
ARGUMENTS = st.lists(GOOD | GOOD | GOOD | st.lists(VALUES, max_size=2), max_size=3).map(
    lambda groups: [word for group in groups for word in group]
)


@settings(max_examples=400, deadline=None)
@given(ARGUMENTS, st.booleans())
@example(["--rdzv-conf", "a=\ud800"], True)
def test_any_command_line(arguments: list[str], script: bool) -> None:
    require_one_line(outcome([*arguments, *(["train.py"] if script else [])], {}))


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=4))
def test_any_environment(environ: dict[str, str]) -> None:
    require_one_line(outcome(["train.py"], environ))
