"""Makes ``ftlaunch.heartbeat`` importable in any interpreter, also one that ftlaunch is not installed in.

No entry in ``sys.path`` or ``PYTHONPATH``: only this one name is served, so nothing else of ours can shadow a module of
the training repository. An installed ftlaunch keeps serving its other packages; ``ftlaunch.heartbeat`` is always the
bootstrap's own, so that the script's beats go through the connection that is already open.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))


class HeartbeatFinder:
    """First in ``sys.meta_path``: finds ``ftlaunch.heartbeat`` in this folder."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See :meth:`importlib.abc.MetaPathFinder.find_spec`."""
        if name != "ftlaunch.heartbeat":
            return None
        return spec_from_file_location(name, os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE])


class ParentFinder:
    """Last in ``sys.meta_path``: an empty ``ftlaunch`` namespace where nobody else has one."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See :meth:`importlib.abc.MetaPathFinder.find_spec`."""
        if name != "ftlaunch":
            return None
        spec: ModuleSpec = type(sys.__spec__)(name, None, is_package=True)
        return spec


def install() -> None:
    """Put both finders in place."""
    sys.meta_path.insert(0, HeartbeatFinder)
    sys.meta_path.append(ParentFinder)
