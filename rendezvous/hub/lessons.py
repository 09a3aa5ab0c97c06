"""What spares may import ahead, at the meeting point: the last that was said, passed on to nodes without a seat."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ftlaunch.rendezvous.common.records import LessonRecord
from ftlaunch.rendezvous.hub.frames import frame
from ftlaunch.rendezvous.hub.jobstate import Guest


class Lessons:
    """``without_seat()``: the ids of the nodes that wait; ``say_to(node id, line)`` sends."""

    def __init__(self, without_seat: Callable[[], Collection[str]], say_to: Callable[[str, bytes], None]) -> None:
        self._without_seat = without_seat
        self._say_to = say_to
        self._known = b""

    def on_lesson(self, guest: Guest, payload: bytes) -> None:
        """A node at work tells it. Raises :class:`~ftlaunch.rendezvous.common.records.RecordError`."""
        LessonRecord.decode(payload)
        if payload != self._known:
            self._known = payload
            for node_id in self._without_seat():
                self.welcome(node_id)

    def welcome(self, node_id: str) -> None:
        """A node has come that has no seat."""
        if self._known:
            self._say_to(node_id, frame("lesson", self._known))
