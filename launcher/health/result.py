"""What a check answers. One kind of answer for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Healthy:
    """Nothing speaks against ranks on this node. ``note``: worth telling the user, mostly empty."""

    check: str
    note: str = ""


@dataclass(frozen=True)
class Unhealthy:
    """Ranks should not run here. ``reason`` is one line that names the thing and the number."""

    check: str
    reason: str


Result = Union[Healthy, Unhealthy]


@dataclass(frozen=True)
class Health:
    """All answers of one round of checks."""

    results: tuple[Result, ...] = ()

    @property
    def healthy(self) -> bool:
        """No check speaks against this node."""
        return not self._unhealthy

    @property
    def reason(self) -> str:
        """All reasons in one line; empty when healthy."""
        return "; ".join(f"{result.check}: {result.reason}" for result in self._unhealthy)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know although the node is fit."""
        return tuple(result.note for result in self.results if isinstance(result, Healthy) and result.note)

    @property
    def _unhealthy(self) -> Sequence[Unhealthy]:
        return [result for result in self.results if isinstance(result, Unhealthy)]
