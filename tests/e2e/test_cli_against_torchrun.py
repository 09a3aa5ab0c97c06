"""The command line held against torchrun's own parser: same names, same abbreviations, same variables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from ftlaunch.launcher.cli import argv, options
from ftlaunch.launcher.errors import UsageError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def torchrun() -> argparse.ArgumentParser:
    run = pytest.importorskip("torch.distributed.run")
    parser: argparse.ArgumentParser = run.get_args_parser()
    return parser


def optional(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in parser._actions if action.option_strings)


def test_every_option_of_torchrun_is_here(torchrun: argparse.ArgumentParser) -> None:
    for action in optional(torchrun):
        for spelled in action.option_strings:
            value = [] if action.nargs == 0 else ["1"]
            (found,) = argv.scan([spelled, *value, "train.py"]).given
            assert found.option.name.replace("-", "_") == action.dest
            assert found.option.flag == (action.nargs == 0)


def test_defaults_are_torchruns(torchrun: argparse.ArgumentParser) -> None:
    # max_restarts: ftlaunch goes on as long as there is progress. shutdown_timeout: torchrun fills its 30 s in later.
    differing = {"max_restarts", "shutdown_timeout", "node_rank"}
    for action in optional(torchrun):
        option = options.by_name()[action.dest.replace("_", "-")]
        if action.dest in differing or option.flag:
            continue
        default = "" if action.default in (None, []) else str(action.default)
        assert (option.default or "") == default


def test_variables_are_torchruns(torchrun: argparse.ArgumentParser) -> None:
    for action in optional(torchrun):
        if type(action).__name__ in {"env", "check_env"}:
            assert options.by_name()[action.dest.replace("_", "-")].env[0] == f"PET_{action.dest.upper()}"


def test_every_abbreviation_means_the_same(torchrun: argparse.ArgumentParser) -> None:
    prefixes = {
        spelled[:length]
        for action in optional(torchrun)
        for spelled in action.option_strings
        if spelled.startswith("--")
        for length in range(3, len(spelled))
    }
    for prefix in sorted(prefixes):
        if prefix[2:].replace("_", "-") in options.by_name():
            continue
        meant = {match[0].dest for match in torchrun._get_option_tuples(prefix)}
        # Both spellings of one option make argparse call a prefix ambiguous; that it means one option is enough here.
        if len(meant) == 1:
            (found,) = argv.scan([prefix, *_value(prefix), "train.py"]).given
            assert {found.option.name.replace("-", "_")} == meant
        else:
            with pytest.raises(UsageError, match="ambiguous"):
                argv.scan([prefix, "1", "train.py"])


def _value(prefix: str) -> list[str]:
    matches = [
        option
        for option in options.OPTIONS
        if option.torchrun and f"--{option.name}".startswith(prefix.replace("_", "-"))
    ]
    return [] if matches[0].flag else ["1"]
