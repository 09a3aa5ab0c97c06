"""Read a pickle without running anything in it.

Every class and function that the pickle names becomes an empty stand-in, made here; nothing is imported or called.
So a pickle can at worst cost memory and time: callers bound its size, and the scan runs in a child.
"""

from __future__ import annotations

import pickle
from typing import IO, Any

from ftlaunch.launcher.checkpoints.files import Incomplete

MAX_PERSISTENT_IDS = 1_000_000


class Inert:
    """Stands for any object of any class: accepts whatever the pickle does to it and keeps nothing."""

    __slots__ = ()

    def __new__(cls, *_args: object, **_kwargs: object) -> Inert:
        return object.__new__(cls)

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Nothing is kept."""

    def __call__(self, *_args: object, **_kwargs: object) -> Inert:
        return self

    def __setstate__(self, _state: object) -> None:
        """Nothing is kept."""

    def __setitem__(self, _key: object, _value: object) -> None:
        """Nothing is kept."""

    def append(self, _value: object) -> None:
        """Nothing is kept."""

    def extend(self, _values: object) -> None:
        """Nothing is kept."""

    def add(self, _value: object) -> None:
        """Nothing is kept."""


class InertMapping(dict[Any, Any]):
    """Stands for ``OrderedDict`` and ``defaultdict``: their items may hold what we look for."""

    def __init__(self, *_args: object) -> None:
        super().__init__()

    def __setstate__(self, _state: object) -> None:
        """Nothing is kept."""


class InertUnpickler(pickle.Unpickler):
    """Loads only containers, texts, numbers and stand-ins.

    ``classes`` maps a class name to the stand-in to use for it. Persistent ids are collected in ``persistent_ids``.
    """

    def __init__(self, stream: IO[bytes], classes: dict[str, type] | None = None) -> None:
        super().__init__(stream)
        self.classes = {"OrderedDict": InertMapping, "defaultdict": InertMapping} | (classes or {})
        self.persistent_ids: list[Any] = []

    def find_class(self, module_name: str, global_name: str, /) -> type:
        """A stand-in, whatever is asked for; ``pickled_name`` is there for those who look at persistent ids."""
        known = self.classes.get(global_name)
        if known is None:
            known = type("Inert", (Inert,), {"__slots__": (), "pickled_name": global_name})
            self.classes[global_name] = known
        return known

    def persistent_load(self, pid: Any) -> Inert | type[Inert]:
        """Note the id: for torch it describes a storage, or the class of a module with its source text."""
        if len(self.persistent_ids) >= MAX_PERSISTENT_IDS:
            raise pickle.UnpicklingError(f"more than {MAX_PERSISTENT_IDS} storages")
        self.persistent_ids.append(pid)
        return Inert if isinstance(pid, tuple) and pid[:1] == ("module",) else Inert()


def load(unpickler: InertUnpickler, what: str) -> Any:
    """Load one pickle. Raises :class:`Incomplete`, whatever is wrong with it."""
    # A damaged pickle raises nearly anything: the opcodes are executed against values of the wrong type.
    try:
        return unpickler.load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        MemoryError,
        RecursionError,
        ImportError,
        NotImplementedError,
    ) as error:
        raise Incomplete(f"{what} is cut off or damaged ({type(error).__name__})") from None
