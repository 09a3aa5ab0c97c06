"""What the pages say is what the code does: options, exit codes, files, event names."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import write_options
from ftlaunch.launcher.cli.options import OPTIONS
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.ftctl.__main__ import cli
from ftlaunch.launcher.journal.records import RECOVERY

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
# Options of other commands that the pages mention.
FOREIGN = {
    *("--check", "--strict", "--only", "--repeat", "--resume", "--quick", "--report", "--backoff-scale"),
    *("--checkpoint", "--checkpoint-dir", "--crash-at", "--lr", "--help", "--revision", "--output", "--picture"),
    *("--kill-on-bad-exit", "--no-kill", "--ntasks-per-node", "--signal", "--wait"),
    *("--html", "--json", "--save-in", "--text", "--minutes", "--plan"),
}


def test_options_page_is_the_table_in_the_code() -> None:
    assert (ROOT / "docs" / "options.md").read_text() == write_options.text(), (
        "run: .venv/bin/python scripts/write_options.py"
    )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "options.md"], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_options_on_pages_exist(page: Path) -> None:
    known = {f"--{option.name}" for option in OPTIONS} | FOREIGN | ftctl_options()
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", page.read_text()))
    assert {option for option in said if option not in known and not peers_option(option)} == set()


def ftctl_options() -> set[str]:
    context = click.Context(cli)
    commands = [cli.get_command(context, name) for name in cli.list_commands(context)]
    commands += [below for group in commands if isinstance(group, click.Group) for below in group.commands.values()]
    return {name for command in commands if command is not None for option in command.params for name in option.opts}


def test_every_command_of_ftctl_is_on_its_page() -> None:
    text = (ROOT / "docs" / "ftctl.md").read_text()
    assert [name for name in cli.list_commands(click.Context(cli)) if f"`{name}" not in text] == []


def peers_option(option: str) -> bool:
    return option.startswith("--ft-")


def test_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    table = (ROOT / "README.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    said = {int(number) for cell in cells for number in re.findall(r"\b\d+\b", cell)} - {128}
    assert said == {int(code) for code in ExitCode}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_fits_into_the_width_of_the_code(page: Path) -> None:
    prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text()).splitlines()
    assert [line for line in prose if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_named_on_pages_exist(page: Path) -> None:
    named = re.findall(r"\b(?:examples|scripts|tests)/[\w./]+\w", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_source_files_named_by_the_architecture_page_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("| in `launcher/` | |")[2].partition("\n## ")[0]
    names = re.findall(r"`([\w*]+(?:\.py|/))`", table)
    assert len(names) > 20
    assert [name for name in names if not list((ROOT / "launcher").glob(name.rstrip("/")))] == []


def test_the_moments_of_a_recovery_are_those_of_the_architecture_page_in_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("| event in `events.jsonl` |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == RECOVERY


def test_phases_of_a_recovery_are_events_that_the_agent_writes() -> None:
    folder = ROOT / "launcher" / "decision"
    source = "\n".join(path.read_text() for path in [*folder.rglob("*.py"), ROOT / "launcher" / "narrator.py"])
    assert [name for name in RECOVERY if f'"{name}"' not in source] == []
