"""What a test needs of this machine; it is skipped where that is missing."""

from __future__ import annotations

import os
import shutil

import pytest

from support.etcd import find_binary

_ETCD = "needs an etcd server"
needs_etcd = pytest.mark.skipif(find_binary() is None, reason=_ETCD)
"""For tests and modules; :func:`need_etcd` is for fixtures."""


def need_etcd() -> None:
    """Skips the test where no etcd server can be started."""
    if find_binary() is None:
        pytest.skip(_ETCD)


def need_pid_namespace() -> list[str]:
    """The command that runs what follows as PID 1 of a namespace; skips the test where there can be none."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a PID namespace")
    return ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
