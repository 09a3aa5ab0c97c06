"""A machine as the command line sees it, made up: nothing of the real one shows through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftlaunch.launcher.cli.machine import Machine

OWN = frozenset({"localhost", "127.0.0.1", "::1", "node7", "10.0.0.7"})


def machine(
    *, cpus: int = 8, gpus: int = 0, xpus: int = 0, executable: str = "/usr/bin/env", orig_argv: Sequence[str] = ()
) -> Machine:
    """``gpus`` are what is there; a list of visible ones limits them by its length."""

    def count_gpus(chosen: Sequence[str] | None) -> int:
        return gpus if chosen is None else min(gpus, len(chosen))

    def count_xpus(environ: Mapping[str, str]) -> int:
        return xpus

    return Machine(
        executable=executable,
        orig_argv=tuple(orig_argv) or (executable, "ftlaunch"),
        cpus=frozenset(range(cpus)),
        count_gpus=count_gpus,
        count_xpus=count_xpus,
        is_local=lambda host: host in OWN,
    )
