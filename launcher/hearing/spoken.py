"""What ranks say, as events of the agent. Pure."""

from __future__ import annotations

from ftlaunch.heartbeat.watching import lastwords
from ftlaunch.heartbeat.watching.verdicts import Progress
from ftlaunch.heartbeat.wire import Message
from ftlaunch.launcher.decision import events as ev

_MAX_REASON = 1000


def last_words(message: Message, progress: Progress) -> ev.Event:
    """A rank is about to end by itself."""
    words = lastwords.from_payload(message.payload)
    return ev.WorkerFailing(message.generation, message.local_rank, words, progress)


def request(message: Message, progress: Progress) -> ev.Event:
    """A rank asks for a restart, or for the end."""
    reason = str(message.payload.get("reason", ""))[:_MAX_REASON] or "no reason given"
    if message.payload.get("what") == "restart":
        reason = f"asks for a restart: {reason}"
        return ev.RestartRequested(message.generation, reason, message.local_rank, progress)
    return ev.StopRequested(message.generation, reason, message.local_rank)
