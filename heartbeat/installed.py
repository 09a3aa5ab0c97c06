"""Whose file is this: the standard library's, an installed package's, or the user's."""

from __future__ import annotations

import os

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def is_standard(file: str) -> bool:
    """Whether a file belongs to the standard library."""
    return file.startswith(_STANDARD_LIBRARY) and not _is_package(file)


def is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library or an installed package, and not to the user."""
    return file.startswith(_STANDARD_LIBRARY) or _is_package(file)


def _is_package(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file
