"""One output stream of one rank: from chunks to file, console, ring and filters. Used by the reader thread only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch.launcher.output.files import LogFile
from ftlaunch.launcher.output.lines import LineSplitter
from ftlaunch.launcher.output.ring import Ring
from ftlaunch.launcher.output.route import matching


@dataclass(frozen=True)
class Outlets:
    """Where the output of a stream goes. ``show`` prints pieces; ``file`` gets every byte."""

    ring: Ring
    file: LogFile | None = None
    show: Callable[[list[bytes]], None] | None = None
    filtered: LogFile | None = None
    patterns: tuple[bytes, ...] = ()
    prefix: bytes = b""


class RankStream:
    """Distributes what one pipe delivers."""

    def __init__(self, outlets: Outlets) -> None:
        self._outlets = outlets
        self._splitter = LineSplitter()

    @property
    def unfinished(self) -> bool:
        """A started line is held back; call :meth:`idle` when nothing follows for a while."""
        return self._splitter.pending

    def open(self) -> None:
        """Create the file, also when nothing is ever written to it: others look for it."""
        if self._outlets.file is not None:
            self._outlets.file.write(b"")

    def take(self, data: bytes) -> None:
        """Distribute one chunk."""
        if self._outlets.file is not None:
            self._outlets.file.write(data)
        self._emit(self._splitter.feed(data))

    def idle(self) -> None:
        """Show a started line as far as it goes: a prompt, a progress bar."""
        self._emit(self._splitter.flush(final=False))

    def end(self) -> None:
        """Nothing follows: show what is left and close the file."""
        self._emit(self._splitter.flush(final=True))
        if self._outlets.file is not None:
            self._outlets.file.close()

    def _emit(self, pieces: list[bytes]) -> None:
        if not pieces:
            return
        outlets = self._outlets
        outlets.ring.extend(pieces)
        if outlets.filtered is not None:
            for piece in matching(pieces, outlets.patterns):
                line = outlets.prefix + piece
                outlets.filtered.write(line if line.endswith(b"\n") else line.rstrip(b"\r") + b"\n")
        if outlets.show is not None:
            outlets.show(pieces)
