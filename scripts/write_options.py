"""Write docs/options.md from the table of options: ``python scripts/write_options.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftlaunch.launcher.cli.options import GROUPS, OPTIONS, Option

TARGET = Path(__file__).resolve().parents[1] / "docs" / "options.md"
HEAD = """\
# Options

Written from `launcher/cli/options.py` by `scripts/write_options.py`; the same text as `ftlaunch --help`.

Every option may be written with `_` for `-`. The command line beats the environment, which beats the default.
torchrun's options keep their `PET_*` variables and their unambiguous abbreviations. A flag's variable takes `1`/`0`,
`true`/`false`, `yes`/`no` or `on`/`off`. DURATION is seconds, or a number with a unit: `500ms`, `10s`, `5m`, `1h`.
Everything after the script goes to it byte for byte; `${local_rank}` in its arguments becomes the local rank.
`ftlaunch --print-config ...` shows every effective value and where it comes from.
"""


def text() -> str:
    """Return the page."""
    return HEAD + "".join(line for group in GROUPS for line in _group(group))


def _group(group: str) -> Iterator[str]:
    yield f"\n## {group}\n\n| option | environment | default | meaning |\n|---|---|---|---|\n"
    for option in OPTIONS:
        if option.group == group:
            cells = (_spelling(option), ", ".join(f"`{name}`" for name in option.env), _default(option), option.help)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _spelling(option: Option) -> str:
    short = f"`-{option.short}`, " if option.short else ""
    return f"{short}`--{option.name}{'' if option.flag else ' ' + option.metavar}`"


def _default(option: Option) -> str:
    if option.flag:
        return "off"
    return f"`{option.default}`" if option.default else ""


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
