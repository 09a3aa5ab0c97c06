"""What the next generation resumes from: each node looks, the leader chooses once for all.

The look happens in a child process, because a dead network file system can hang it for ever; the choice is published
with the rank table and reaches the workers as FTLAUNCH_RESUME_FROM, FTLAUNCH_RESUME_STEP and ``{resume}``.
"""

from __future__ import annotations

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
from ftlaunch.launcher.processes.bystanders import run_bounded


class Resume:
    """Looks for checkpoints and chooses. ``tell`` writes an event."""

    def __init__(self, config: CheckpointConfig, environment: Mapping[str, str], tell: Callable[..., None]) -> None:
        self._config = config
        self._environment = environment
        self._tell = tell
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
        limit_s = self._config.scan_timeout_s + child.GRACE_S
        try:
            argv = child.command(sys.executable, self._config)
            done = await run_bounded(argv, self._environment, limit_s, merge=True, keep_bytes=child.MAX_OUTPUT_BYTES)
        except SpawnError as error:
            return child.read_view(directory, b"", str(error))
        if done.timed_out:
            return child.read_view(directory, b"", f"the look at it did not end within {limit_s:g} s")
        problem = None if done.exit_code == 0 else f"the look at it ended with code {done.exit_code}"
        return child.read_view(directory, done.tail, problem)


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
