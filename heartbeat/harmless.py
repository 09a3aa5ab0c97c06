"""What we add to a program must not break it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class Harmless:
    """``with Harmless():`` keeps any :class:`Exception` of the block from the script. The outermost edge of our code.

    For reports, hooks and objects of the script's own; interrupts and exits go through.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return kind is not None and issubclass(kind, Exception)
