"""What spares may import ahead: left by the node with group rank 0, watched by spares alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ftlaunch.rendezvous.common.records import LessonRecord, RecordError
from ftlaunch.rendezvous.etcd.errors import EtcdError
from ftlaunch.rendezvous.etcd.site import Site, log
from ftlaunch.rendezvous.etcd.watch import Broken, Snapshot, Update, follow_ranges
from ftlaunch.rendezvous.interface import Lesson


class Lessons:
    """Writes the lesson, and hears it. Nothing else depends on either."""

    def __init__(self, site: Site, hear: Callable[[Lesson], None]) -> None:
        self._site = site
        self._hear = hear
        self._stream: Future[None] | None = None
        self._known: LessonRecord | None = None

    def listen(self) -> None:
        """This node is a spare: hear the lesson, now if there is one and whenever it changes."""
        if self._stream is None:
            site = self._site

            def tell(update: Update) -> None:
                site.post(self._on_update, update)

            ranges = (site.keys.modules,)
            self._stream = site.io.submit(follow_ranges(site.client, ranges, tell, site.settings.node_timeout_s))

    def stop(self) -> None:
        """This node is no spare any more."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def teach(self, lesson: Lesson) -> None:
        """Leave it, unless it is what is there already."""
        record = LessonRecord(tuple(lesson.names), dict(lesson.environment))
        if record == self._known:
            return
        self._known = record
        try:
            await self._site.ask(lambda: self._site.job.teach(record))
        except (EtcdError, RecordError) as error:
            log.info("spares cannot be told what to import ahead: %s", error)

    def _on_update(self, update: Update) -> None:
        if isinstance(update, Broken) or self._stream is None:
            return
        changed = update.values if isinstance(update, Snapshot) else (change.value for change in update)
        for value in changed:
            if value is None:
                continue
            try:
                record = LessonRecord.decode(value.value)
            except RecordError as error:
                log.warning("ignoring etcd key %s: %s", value.key, error)
                continue
            if record != self._known:
                self._known = record
                self._hear(Lesson(record.names, record.environment))
