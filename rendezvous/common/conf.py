"""What both ways to meet read alike from ``--rdzv-conf``."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.rendezvous.interface import SettingsError


def durations(conf: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, float]:
    """Seconds by field name; ``fields`` maps the keys. torchrun's ``timeout`` is how long to wait for the others.

    Raises :class:`SettingsError`.
    """
    found = {fields[key]: _seconds(key, conf[key]) for key in conf if key in fields}
    if "timeout" in conf:
        found.setdefault("join_timeout_s", _seconds("timeout", conf["timeout"]))
    return found


def _seconds(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10**9:
        raise SettingsError(f"{key}={text} in --rdzv-conf is not a number of seconds")
    return value
