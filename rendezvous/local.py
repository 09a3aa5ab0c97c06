"""One node, no server: every generation is agreed at once, with a store port of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from ftlaunch.rendezvous import ports
from ftlaunch.rendezvous.interface import (
    Answers,
    Conclude,
    Exclusion,
    ExclusionAnswer,
    ExclusionWish,
    JoinFailed,
    Joining,
    Lesson,
    Member,
    OnEvent,
    Outcome,
    Publish,
    Question,
    RendezvousError,
    RendezvousEvent,
    Respondent,
    SettingsError,
    World,
    WorldAgreed,
)


class LocalRendezvous:
    """The default for ``--nnodes 1``. A fixed ``master_port`` is honoured; otherwise each generation gets a new one.

    The port of the current generation stays reserved until the next one is agreed: see :mod:`.ports`.
    """

    def __init__(
        self,
        run_id: str = "",
        master_addr: str | None = None,
        master_port: int | None = None,
        publish: Publish | None = None,
    ) -> None:
        self.run_id = run_id or uuid.uuid4().hex
        self._master_addr = master_addr or "localhost"
        self._master_port = master_port
        self._reservation: ports.PortReservation | None = None
        self._publish = publish
        self._restarts = 0
        self._on_event: OnEvent | None = None

    def tell_trust(self, listener: Callable[[float], None]) -> None:
        """There is nobody else who could go on without this node."""

    def check_lease(self) -> None:
        """There is none."""

    def start(self, on_event: OnEvent) -> None:
        """Raises :class:`SettingsError` when the fixed master port is taken already."""
        self._on_event = on_event
        if self._master_port is not None:
            try:
                ports.reserve(self._master_port).close()
            except OSError as error:
                owner = ports.listener_on(self._master_port)
                raise SettingsError(
                    f"master port {self._master_port} cannot be used ({error.strerror}{owner and f', by {owner}'}); "
                    "leave out --master-port to get a free one"
                ) from None

    def join(self, joining: Joining) -> None:
        """Answer on the next turn of the loop, as a distant rendezvous would: never from within the call."""
        if joining.counted and joining.generation > 0:
            self._restarts += 1
        self._post(self._agree(joining))

    def announce_failure(self, generation: int, reason: str) -> None:
        """Nobody else to tell."""

    def respond_with(self, respondent: Respondent) -> None:
        """Nobody else to answer."""

    async def ask(self, question: Question, limit_s: float, conclude: Conclude | None = None) -> Answers | None:
        """Nobody else to ask."""
        return Answers()

    def teach(self, lesson: Lesson) -> None:
        """There are no spares."""

    @property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """None."""
        return ()

    async def exclude(self, wish: ExclusionWish) -> ExclusionAnswer:
        """Raises :class:`RendezvousError`, always."""
        raise RendezvousError("this job runs on one node: there is none that could be left out")

    async def finish(self, generation: int, outcome: Outcome, exit_code: int, reason: str, timeout_s: float) -> int:
        """Nobody to wait for."""
        return exit_code

    async def close(self) -> None:
        """Give the port back."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def _agree(self, joining: Joining) -> RendezvousEvent:
        try:
            port = self._next_port()
        except OSError as error:
            return JoinFailed(joining.generation, f"no port for the store: {error.strerror}")
        return WorldAgreed(
            World(
                generation=joining.generation,
                members=(Member("local", self._master_addr, 0, joining.slots),),
                group_rank=0,
                rank_offset=0,
                world_size=joining.slots,
                master_addr=self._master_addr,
                master_port=port,
                restart_count=self._restarts,
                run_id=self.run_id,
                shared=self._publish([joining.offers]) if self._publish is not None else {},
            )
        )

    def _next_port(self) -> int:
        if self._master_port is not None:
            return self._master_port
        fresh = ports.reserve()
        # The old one is given back only now: two generations running never get the same number.
        if self._reservation is not None:
            self._reservation.close()
        self._reservation = fresh
        return fresh.port

    def _post(self, event: RendezvousEvent) -> None:
        if self._on_event is not None:
            asyncio.get_running_loop().call_soon(self._on_event, event)
