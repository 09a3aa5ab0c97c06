"""The value of every option and where it came from: command line, then environment, then default.

An environment variable that is set but empty counts as not set.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.launcher.cli import options, values
from ftlaunch.launcher.cli.options import Option
from ftlaunch.launcher.errors import UsageError
from ftlaunch.launcher.secrecy import hide

_FOREIGN = frozenset({"SLURM_NODEID", "JOB_COMPLETION_INDEX", "LOGLEVEL", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"})
"""Variables that others set for purposes of their own, or that torchrun passes over when they make no sense: an
unusable value is noted and passed over."""


class Source(enum.Enum):
    """Where a value came from, in order of precedence."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


@dataclass(frozen=True)
class Setting:
    """One option's value. ``text`` shows it; ``where`` is the flag or variable it was read from."""

    value: Any
    text: str
    source: Source
    where: str = ""
    why: str = ""
    """How the value follows from others, where it is not simply what was given."""

    @property
    def origin(self) -> str:
        """For people: ``flag --tee``, ``environment PET_TEE``, ``default``, each with the reason if there is one."""
        place = f"{self.source.value} {self.where}".rstrip()
        return f"{place}: {self.why}" if self.why else place


class Settings:
    """All settings by option name while they are worked out, and the notes that come up on the way."""

    def __init__(self, settings: dict[str, Setting], notes: list[str]) -> None:
        self._settings = settings
        self.notes = notes
        self.infos: list[str] = []
        """What only those want to read who ask for it with ``--log-level INFO``."""

    def __getitem__(self, name: str) -> Any:
        return self._settings[name].value

    def items(self) -> Mapping[str, Setting]:
        """All of them, by option name, in the order of the table."""
        return self._settings

    def is_given(self, name: str) -> bool:
        """Whether the user said anything about it."""
        return self._settings[name].source is not Source.DEFAULT

    def is_flag(self, name: str) -> bool:
        """Whether it was said on the command line."""
        return self._settings[name].source is Source.FLAG

    def spelled(self, name: str) -> str:
        """What to call it in a message: the flag, or the variable that it was read from."""
        setting = self._settings[name]
        return setting.where if setting.source is Source.ENVIRONMENT else f"--{name}"

    def shown(self, name: str) -> str:
        """Its text as others may see it. No secret is accepted in --rdzv-conf, and its key=FILE is worth seeing."""
        text = self._settings[name].text
        return text if name == "rdzv-conf" else hide(text)

    def derive(self, name: str, value: Any, text: str, why: str) -> None:
        """Replace a value by what follows from it and others."""
        old = self._settings[name]
        self._settings[name] = Setting(value, text, old.source, old.where, why)

    def reset(self, name: str, why: str) -> None:
        """Back to the default."""
        default = _default(options.by_name()[name])
        self._settings[name] = Setting(default.value, default.text, Source.DEFAULT, why=why)

    def error(self, name: str, message: str) -> UsageError:
        """An error about one option, named as the user knows it; for raising."""
        setting = self._settings[name]
        return UsageError(f"{self.spelled(name)} {message}, not {values.show(setting.text)}")


def gather(given: Mapping[str, Any], texts: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """Look every option up. ``given`` holds the parsed values of the command line, ``texts`` the same as typed.

    Raises :class:`UsageError` for an environment variable that cannot be read.
    """
    notes: list[str] = []
    settings = {}
    for option in options.OPTIONS:
        name = option.name
        if name in given:
            settings[name] = Setting(given[name], texts[name], Source.FLAG, f"--{name}")
        else:
            settings[name] = _from_environment(option, environ, notes) or _default(option)
    return Settings(settings, notes)


def parse_value(option: Option, spelled: str, text: str) -> Any:
    """Parse one option's text; raises :class:`UsageError` naming ``spelled``."""
    try:
        return values.boolean(text) if option.flag else option.parse(text)
    except ValueError as error:
        raise UsageError(f"{spelled} {error}, not {values.show(text)}") from None


def _from_environment(option: Option, environ: Mapping[str, str], notes: list[str]) -> Setting | None:
    for variable in option.env:
        text = environ.get(variable, "")
        if not text.strip():
            continue
        try:
            value = parse_value(option, variable, text)
        except UsageError as error:
            if variable not in _FOREIGN:
                raise
            notes.append(f"{error}; it is passed over")
            continue
        return Setting(value, _shown(option, value, text), Source.ENVIRONMENT, variable)
    return None


def _default(option: Option) -> Setting:
    if option.flag:
        return Setting(False, "no", Source.DEFAULT)
    if option.default is None:
        return Setting(None, "", Source.DEFAULT)
    return Setting(option.parse(option.default), option.default, Source.DEFAULT)


def _shown(option: Option, value: Any, text: str) -> str:
    return ("yes" if value else "no") if option.flag else text


def joined(option: Option, parts: Sequence[Any]) -> Any:
    """The value of an option that was given several times: all of them together, or the last one."""
    return tuple(item for part in parts for item in part) if option.repeatable else parts[-1]
