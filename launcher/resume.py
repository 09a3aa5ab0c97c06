"""What the next generation resumes from: each node looks, the leader chooses once for all.

The look happens in a child process, because a dead network file system can hang it for ever; the choice is published
with the rank table and reaches the workers as FTLAUNCH_RESUME_FROM, FTLAUNCH_RESUME_STEP and ``{resume}``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftlaunch.launcher.checkpoints import child
from ftlaunch.launcher.checkpoints.choose import choose
from ftlaunch.launcher.checkpoints.model import Choice, Skipped, View
from ftlaunch.launcher.config import CheckpointConfig
from ftlaunch.launcher.decision.generations import GenerationRecord, poisoned_paths
from ftlaunch.launcher.errors import SpawnError
from ftlaunch.launcher.exit_codes import ExitCode
from ftlaunch.launcher.processes.process import SpawnSpec, WorkerProcess, spawn


class Resume:
    """Looks for checkpoints and chooses. ``adopt`` and ``release`` get the pid of the child that looks."""

    def __init__(
        self,
        config: CheckpointConfig,
        environment: Mapping[str, str],
        tell: Callable[..., None],
        helpers: set[int],
    ) -> None:
        self._config = config
        self._environment = environment
        self._tell = tell
        self._helpers = helpers
        self._known: set[Skipped] = set()

    async def offers(self, history: Sequence[GenerationRecord]) -> Mapping[str, Any]:
        """What this node sees now. Takes as long as the look, at most ``scan_timeout_s`` and a few seconds."""
        view = await self._look()
        for skipped in view.skipped:
            # The same one may be saved again, and be damaged in another way.
            if skipped not in self._known:
                self._known.add(skipped)
                self._tell("checkpoint_skipped", reason=f"skipped {skipped.path}: {skipped.reason}", say=True)
        return {"checkpoints": view.as_offer(), "poisoned": sorted(poisoned_paths(history))}

    def publish(self, offers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The choice for all nodes, from what each of them offered; called on the leader."""
        views, poisoned = [], set[str]()
        for offer in offers:
            try:
                views.append(View.from_offer(offer.get("checkpoints")))
            except ValueError as error:
                views.append(View("", error=str(error)))
            poisoned.update(str(path) for path in offer.get("poisoned", ()))
        choice = choose(views, self._config.shared_storage, poisoned)
        return _shared(choice, bool(poisoned))

    async def _look(self) -> View:
        directory = self._config.directory or ""
        output = os.memfd_create("ftlaunch-checkpoints", os.MFD_CLOEXEC)
        try:
            argv = child.command(sys.executable, self._config)
            process = spawn(SpawnSpec(argv, self._environment, stdout=output))
            problem = await self._wait(process)
            size = min(os.fstat(output).st_size, child.MAX_OUTPUT_BYTES)
            return child.read_view(directory, os.pread(output, size, 0), problem)
        except SpawnError as error:
            return child.read_view(directory, b"", str(error))
        finally:
            os.close(output)

    async def _wait(self, process: WorkerProcess) -> str | None:
        """Why there is no result, ``None`` when there is one. A child that cannot be killed is left behind."""
        limit_s = self._config.scan_timeout_s + child.GRACE_S
        self._helpers.add(process.pid)
        process.watch(lambda exited: None)
        await asyncio.wait({process.exited}, timeout=limit_s)
        if process.alive:
            process.signal_group(signal.SIGKILL)
            await asyncio.wait({process.exited}, timeout=1.0)
        if process.alive:
            # In a system call that does not end (a dead mount): init will reap it one day.
            process.abandon()
            return f"the look at it did not end within {limit_s:g} s and cannot be killed"
        self._helpers.discard(process.pid)
        process.signal_group(signal.SIGKILL)
        process.reap()
        return None if process.exit_code == 0 else f"the look at it ended with code {process.exit_code}"


def _shared(choice: Choice, poisoned: bool) -> Mapping[str, Any]:
    if choice.path is None and not choice.certain:
        # Starting afresh could throw away days of work: for a person to decide.
        code = ExitCode.NO_PROGRESS if poisoned else ExitCode.UNHEALTHY
        return {"refused": f"cannot tell what to resume from: {choice.reason}", "refused_code": int(code)}
    return {
        "resume_from": choice.path or "",
        "resume_step": choice.step,
        "resume_reason": choice.reason,
        "resume_paths": list(choice.paths),
    }
