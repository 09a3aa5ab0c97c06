"""``--health-port``: ``/healthz`` and ``/readyz`` for a probe, say of Kubernetes.

``/healthz`` is 200 as long as the agent's loop turns: a probe that gets no answer in time has found an agent that is
stuck. It says nothing of the training, which the agent itself looks after: whoever kills the agent for a stalled
rank only gets in its way. ``/readyz`` follows the training: 200 while steps are heard, 503 while ranks start, while a
recovery is under way, after too long a silence, and when the job ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftlaunch.launcher.history.model import History
from ftlaunch.launcher.views.tiny_http import Answer, Page


@dataclass(frozen=True)
class Readiness:
    """Whether training goes on, and why not."""

    ready: bool
    reason: str
    generation: int | None = None
    step: int | None = None
    beat_age_s: float | None = None


def readiness(history: History, now: float, silence_s: float, needs_beat: bool) -> Readiness:
    """Judge a running job. Without beats to be expected (``--heartbeat off``) started ranks are enough. Pure."""
    if history.finished or not history.generations:
        return Readiness(
            False, "the job has ended" if history.finished else "the first generation is not agreed on yet"
        )
    generation = history.generations[-1]
    number = generation.number
    step = max((item.step for item in generation.readings if item.step is not None), default=None)
    if generation.failed is not None:
        return Readiness(False, f"generation {number} failed: {generation.failed.reason}", number, step)
    if generation.started_at is None:
        return Readiness(False, f"generation {number} is being started", number)
    if not needs_beat:
        return Readiness(True, "ranks run; nobody listens for beats", number)
    if generation.first_beat is None:
        return Readiness(False, "no beat was heard yet", number)
    heard = generation.last_beat if generation.last_beat is not None else generation.first_beat
    age_s = max(0.0, now - heard)
    if age_s > silence_s:
        return Readiness(False, f"no beat for {age_s:.0f} s", number, step, age_s)
    return Readiness(True, "steps are heard", number, step, age_s)


def health_pages(judge: Callable[[], Readiness]) -> Mapping[str, Page]:
    """The two pages."""
    return {"/healthz": lambda fields: Answer(b"ok\n"), "/readyz": lambda fields: _ready(judge())}


def _ready(found: Readiness) -> Answer:
    told = {
        "ready": found.ready,
        "reason": found.reason,
        "generation": found.generation,
        "step": found.step,
        "beat_age_s": None if found.beat_age_s is None else round(found.beat_age_s, 3),
    }
    return Answer(json.dumps(told).encode() + b"\n", "application/json", 200 if found.ready else 503)
