"""The master port of the generation that runs and of the one to come, so that nobody else takes either."""

from __future__ import annotations

from ftlaunch.rendezvous import ports


class PortKeeper:
    """``fixed``: a port the user asked for, used for every generation and not reserved."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._current: ports.PortReservation | None = None
        self._next: ports.PortReservation | None = None

    @property
    def upcoming(self) -> int:
        """The port to publish for the generation to come; 0 before :meth:`prepare`."""
        if self._fixed is not None:
            return self._fixed
        return self._next.port if self._next is not None else 0

    def prepare(self) -> None:
        """Reserve a port unless there is one. The current one is kept: two generations never get the same number.

        Raises :class:`OSError`.
        """
        if self._fixed is None and self._next is None:
            self._next = ports.reserve()

    def agreed(self, is_master: bool) -> None:
        """The next generation stands: its master keeps the port, the others need none."""
        if self._current is not None:
            self._current.close()
        self._current, self._next = self._next, None
        if not is_master and self._current is not None:
            self._current.close()
            self._current = None

    def close(self) -> None:
        """Give back all."""
        for reservation in (self._current, self._next):
            if reservation is not None:
                reservation.close()
        self._current = self._next = None
