"""Lets a process that has imported a lot look as if it had imported nothing, until the script imports something.

Before a standby becomes a rank, its preloaded modules are taken out of ``sys.modules`` and what their imports changed
(warning filters, hooks, import paths, limits, CPUs) is put back. With the script's first import of any of them,
provided that the script's ``sys.path`` finds the same file, they are put in place again, in no time: those of the
standard library with the first of these, and all others, with the changes that came with them, with the first of the
others.
"""

from __future__ import annotations

import _warnings
import gc
import os
import sys

from ftlaunch.heartbeat.client import CLIENT
from ftlaunch.heartbeat.harmless import Harmless
from ftlaunch.heartbeat.hooks import find_behind
from ftlaunch.heartbeat.installed import is_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Setting:
    """Something global that an import may change. Lists are replaced in place."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.read = read
        self.write = write
        self.cold: Any = read()
        self.warm: Any = self.cold

    def chill(self) -> None:
        """Back to what it was before the imports."""
        self.warm = self.read()
        if self.warm != self.cold:
            self.write(self.cold)

    def thaw(self) -> None:
        """What the imports had made of it, unless the script has set it; a list takes what was added."""
        now = self.read()
        if self.warm == self.cold or now == self.warm:
            return
        if now == self.cold:
            self.write(self.warm)
        elif isinstance(now, list):
            self.write(_merged(now, self.cold, self.warm))


def _merged(now: list[Any], cold: list[Any], warm: list[Any]) -> list[Any]:
    """``now`` with what ``warm`` has in front of ``cold`` put in front, and anything else it has added at the end."""
    front: list[Any] = []
    for item in warm:
        if item in cold:
            break
        front.append(item)
    back = [item for item in warm[len(front) :] if item not in cold]
    return [*[each for each in front if each not in now], *now, *[each for each in back if each not in now]]


def _settings() -> list[Setting]:
    names = ("excepthook", "displayhook", "unraisablehook", "stdin", "stdout", "stderr", "dont_write_bytecode")
    filters: list[Any] = _warnings.filters
    return [
        *[_list(values) for values in (sys.path, sys.meta_path, sys.path_hooks)],
        Setting(lambda: list(filters), _write_filters),
        *[_attribute(name) for name in names],
        Setting(sys.getrecursionlimit, sys.setrecursionlimit),
        Setting(sys.getswitchinterval, sys.setswitchinterval),
        Setting(gc.get_threshold, lambda values: gc.set_threshold(*values)),
        Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    ]


def _attribute(name: str) -> Setting:
    return Setting(lambda: getattr(sys, name), lambda value: setattr(sys, name, value))


def _list(values: list[Any]) -> Setting:
    return Setting(lambda: list(values), lambda wanted: values.__setitem__(slice(None), wanted))


def _write_filters(wanted: list[Any]) -> None:
    _warnings.filters[:] = wanted
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        # Renamed in 3.14, where it wants the lock; nobody else runs here.
        mutated = getattr(_warnings, name, None)
        if mutated is not None:
            mutated()
            return


def _bind(cpus: set[int]) -> None:
    # Refused with another cpuset by now: what is left is what we get.
    with Harmless():
        os.sched_setaffinity(0, cpus)


class Environ(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` while modules are preloaded: notes what they read and what they wrote.

    What a module read at import must have the same value for the rank, else the module is not what a cold start would
    have made. What a module wrote belongs to its import, and is written again when the script imports it. A walk
    through all variables (``dict(os.environ)``, a search for a prefix) says nothing about any one of them.
    """

    def begin(self, watched: Sequence[str], on_watched: Callable[[str], None]) -> None:
        """Start with empty notes; ``on_watched`` is called when one of ``watched`` is read."""
        self.seen: dict[str, str | None] = {}
        self.written: dict[str, tuple[str | None, bool]] = {}
        self._watched = watched
        self._on_watched = on_watched
        self._walked: set[str] = set()

    def end(self) -> tuple[dict[str, str | None], dict[str, tuple[str | None, bool]]]:
        """What was seen and what was written; nothing of ours stays in the object."""
        notes = self.seen, self.written
        for name in ("seen", "written", "_watched", "_on_watched", "_walked"):
            delattr(self, name)
        return notes

    def __iter__(self) -> Iterator[str]:
        keys = list(super().__iter__())
        self._walked = set(keys)
        return iter(keys)

    def forget_walk(self) -> None:
        """The next import begins: what is read from here on is read for itself."""
        self._walked.clear()

    def __getitem__(self, key: str) -> str:
        value: str | None = None
        try:
            value = super().__getitem__(key)
            return value
        finally:
            if key in self._walked:
                self._walked.discard(key)
            elif key not in self.written:
                self.seen.setdefault(key, value)
                if key in self._watched:
                    self._on_watched(key)

    def __contains__(self, key: object) -> bool:
        # The base class would try __getitem__, and tell less.
        return isinstance(key, str) and self.get(key) is not None

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        self.written[key] = (value, True)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.written[key] = (None, True)

    def setdefault(self, key: str, value: str) -> str:  # type: ignore[override]
        """As ``dict.setdefault``; noted also where there was a value."""
        if key not in self:
            super().__setitem__(key, value)
        self.written.setdefault(key, (value, False))
        return str(super().__getitem__(key))


def replay(written: dict[str, tuple[str | None, bool]]) -> None:
    """Write into the environment what modules wrote at import."""
    for key, (value, always) in written.items():
        if value is None:
            os.environ.pop(key, None)
        elif always or key not in os.environ:
            os.environ[key] = value


class WarmStart:
    """The state before the preload, and the preloaded modules once :meth:`chill` has hidden them."""

    def __init__(self) -> None:
        self.settings = _settings()
        self.cpus = Setting(lambda: os.sched_getaffinity(0), _bind)
        """Chilled by the standby, directly after its imports: later others may have changed them."""
        self.environment_writes: dict[str, tuple[str | None, bool]] = {}
        self._known = frozenset(sys.modules)
        __import__("runpy")
        self._with_runpy = frozenset(sys.modules)
        self._hidden: dict[str, ModuleType] = {}

    def chill(self, *, through_runpy: bool) -> None:
        """Hide what was imported; what the interpreter itself imports to run a module or a folder stays for these."""
        known = self._with_runpy if through_runpy else self._known
        for name in [name for name in sys.modules if name not in known]:
            if not name.startswith("ftlaunch") and _can_be_served(sys.modules[name]):
                self._hidden[name] = sys.modules.pop(name)
        for setting in self.settings:
            setting.chill()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The others' spec, with a loader that brings the preloaded module back; None for modules we don't hold."""
        module = self._hidden.get(name)
        if module is None:
            return None
        spec = find_behind(self, name, path, target)
        original = _spec_of(module)
        if spec is None or original is None or spec.origin != original.origin or isinstance(spec.loader, type):
            return None
        loader: Any = spec.loader

        def exec_module(executed: ModuleType) -> None:
            del loader.create_module, loader.exec_module
            executed.__spec__ = original
            self.thaw(everything=not _is_standard(original))

        loader.create_module = lambda wanted: module
        loader.exec_module = exec_module
        return spec

    def thaw(self, *, everything: bool) -> None:
        """Bring the standard library back, or everything. Harmless when done already."""
        for name, module in list(self._hidden.items()):
            if everything or _is_standard(_spec_of(module)):
                sys.modules.setdefault(name, module)
                # From now on it is like any other: removed and imported again, it is executed again.
                del self._hidden[name]
        if not everything or self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        for setting in (*self.settings, self.cpus):
            setting.thaw()
        replay(self.environment_writes)
        if CLIENT.hooked:
            # Said once already, but by a standby that nobody could hear.
            CLIENT.hello("import")


def _spec_of(module: ModuleType) -> ModuleSpec | None:
    try:
        # Not getattr: a lazy module would be loaded by it.
        spec: ModuleSpec | None = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    return spec


def _is_standard(spec: ModuleSpec | None) -> bool:
    return spec is not None and isinstance(spec.origin, str) and is_standard(spec.origin)


def _can_be_served(module: ModuleType) -> bool:
    """Built-in and frozen modules have no loader instance; modules without a spec were put there by hand.

    Those stay: modules made up in C (Cython's shared types) must never be made twice.
    """
    spec = _spec_of(module)
    return spec is not None and spec.loader is not None and not isinstance(spec.loader, type)
