"""What spares may import ahead, at the meeting point: the last that was said, passed on to nodes without a seat."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ftlaunch.rendezvous.common.records import LessonRecord, TableRecord
from ftlaunch.rendezvous.hub.frames import frame
from ftlaunch.rendezvous.hub.jobstate import Guest


class Lessons:
    """``here()``: the ids of the nodes that are connected; ``say_to(node id, line)`` sends."""

    def __init__(
        self,
        table: Callable[[], TableRecord | None],
        here: Callable[[], Collection[str]],
        say_to: Callable[[str, bytes], None],
    ) -> None:
        self._table = table
        self._here = here
        self._say_to = say_to
        self._known = b""

    def on_lesson(self, guest: Guest, payload: bytes) -> None:
        """The node with group rank 0 tells it. Raises :class:`~ftlaunch.rendezvous.common.records.RecordError`."""
        LessonRecord.decode(payload)
        table = self._table()
        if table is None or table.rank_of(guest.hello.node_id) != 0:
            # It was that in a former generation, and has not heard of a later one.
            return
        if payload != self._known:
            self._known = payload
            for node_id in self._here():
                self.welcome(node_id)

    def welcome(self, node_id: str) -> None:
        """A node has come: it hears the lesson unless it has a seat."""
        table = self._table()
        if self._known and (table is None or table.rank_of(node_id) is None):
            self._say_to(node_id, frame("lesson", self._known))
