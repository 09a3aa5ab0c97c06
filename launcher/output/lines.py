"""Cut a byte stream into displayable pieces, and put prefixes before them. Pure; bytes in, bytes out.

A piece ends with a line feed or a carriage return (kept), so that progress bars move as they were meant to. Nothing is
decoded: what is not UTF-8 passes through as it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

PIECE_LIMIT = 1 << 20
"""Bytes of one line that are held back at most; a longer line is emitted in parts."""
BLOCK_LIMIT = 4096
"""A write of at most PIPE_BUF bytes to a pipe is atomic (pipe(7)), whoever else writes to it."""

_LF = 0x0A
_CR = 0x0D


class LineSplitter:
    """Collects chunks of one stream, hands out pieces. Holds at most ``limit`` bytes plus one chunk."""

    def __init__(self, limit: int = PIECE_LIMIT) -> None:
        self._limit = limit
        self._pending = bytearray()

    @property
    def pending(self) -> bool:
        """Whether something is held back that :meth:`flush` would emit."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[bytes]:
        """Take a chunk; return the pieces that it completes. The last one may be a part of a line over the limit."""
        done: list[bytes] = []
        if self._pending.endswith(b"\r"):
            # Held back to see whether a line feed follows: "\r\n" is one line end.
            if data.startswith(b"\n"):
                self._pending += b"\n"
                data = data[1:]
            if data or self._pending.endswith(b"\n"):
                done.append(self._take())
        pieces = data.splitlines(keepends=True)
        if self._pending and pieces:
            self._pending += pieces.pop(0)
            if pieces or self._pending.endswith(b"\n"):
                done.append(self._take())
        done += pieces
        if pieces and not pieces[-1].endswith(b"\n"):
            self._pending += done.pop()
        while len(self._pending) > self._limit:
            done.append(self._take(complete_length(self._pending, self._limit)))
        return done

    def flush(self, final: bool) -> list[bytes]:
        """Emit what is held back, but no half of a UTF-8 character unless the stream has ended (``final``)."""
        length = len(self._pending) if final else complete_length(self._pending, len(self._pending))
        return [self._take(length)] if length else []

    def _take(self, length: int | None = None) -> bytes:
        taken = bytes(self._pending[:length])
        del self._pending[:length]
        return taken


def complete_length(data: bytes | bytearray, length: int) -> int:
    """The longest prefix of at most ``length`` bytes that does not end inside a UTF-8 character.

    Bytes that cannot be UTF-8 count as complete.
    """
    for back in range(1, min(4, length + 1)):
        byte = data[length - back]
        if byte < 0x80:
            return length
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return length - back if byte < 0xF8 and wanted > back else length
    return length


class Cursor:
    """Where a screen's cursor stands: in a line begun by ``owner``, or at the start of a line (``None``)."""

    def __init__(self, owner: Hashable | None = None, returned: bool = False) -> None:
        self.owner = owner
        self.returned = returned
        """The line was begun, and a carriage return put the cursor back to its start."""


def compose(cursor: Cursor, owner: Hashable, prefix: bytes, pieces: Sequence[bytes]) -> list[bytes]:
    """Put ``prefix`` before each piece that starts a line, and end a line that somebody else left unfinished."""
    shown = []
    for piece in pieces:
        head = prefix
        if cursor.owner is not None:
            if cursor.owner != owner:
                head = b"\n" + prefix
            elif not cursor.returned or piece == b"\n":
                head = b""
        if piece == b"\r":
            head = head.removesuffix(prefix)
        shown.append(head + piece)
        last = piece[-1]
        cursor.owner = None if last == _LF else owner
        cursor.returned = last == _CR
    return shown


def pack(pieces: Sequence[bytes], limit: int = BLOCK_LIMIT) -> list[bytes]:
    """Join whole pieces into blocks of at most ``limit`` bytes; a longer piece is a block of its own."""
    blocks: list[bytes] = []
    start, size = 0, 0
    for index, piece in enumerate(pieces):
        if size and size + len(piece) > limit:
            blocks.append(b"".join(pieces[start:index]))
            start, size = index, 0
        size += len(piece)
    if size:
        blocks.append(b"".join(pieces[start:]))
    return blocks
