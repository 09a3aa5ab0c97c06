"""Which installed modules a rank had loaded by its first step: what the next standby will import beforehand.

Only what lies under site-packages, dist-packages or the standard library; never the user's own files.
"""

from __future__ import annotations

import os
import sys

from ftlaunch.heartbeat import compact
from ftlaunch.heartbeat.client import CLIENT, MAX_BYTES, MODULES
from ftlaunch.heartbeat.installed import is_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

_MAX_NAMES = 50_000
_HEADER_ROOM = 64


def loaded() -> list[str]:
    """Names of the installed modules loaded so far, in the order in which their imports ended. About 1 µs each."""
    return [name for name, module in list(sys.modules.items()) if _is_candidate(name, module)]


def _is_candidate(name: str, module: ModuleType) -> bool:
    try:
        # Not getattr: a lazy module would be loaded by it.
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
        origin = spec.origin
        known = spec.name == name and isinstance(origin, str) and is_installed(origin)
    except (AttributeError, TypeError):
        return False
    return known and name != "__main__" and not name.startswith("ftlaunch")


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What an environment became: new and changed values, None for what was removed. Our own variables aside."""
    found: dict[str, str | None] = {key: value for key, value in after.items() if before.get(key) != value}
    found.update({key: None for key in before if key not in after})
    return {key: value for key, value in found.items() if not key.startswith("FTLAUNCH_")}


class Reporter:
    """Sends the list once, at the first beat of local rank 0."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._before = environment

    def __call__(self) -> None:
        if self._before.get("LOCAL_RANK") != "0":
            return
        changed = changes(self._before, os.environ)
        names = loaded()[:_MAX_NAMES]
        body = _deflate(names, changed)
        while len(body) > MAX_BYTES - _HEADER_ROOM and names:
            names = names[: len(names) // 2]
            body = _deflate(names, changed)
        CLIENT.tell_raw(MODULES, body)


def _deflate(names: list[str], changed: dict[str, str | None]) -> bytes:
    import zlib

    return zlib.compress(compact.dumps({"names": names, "environment": changed}))
