"""What a rank runs."""

from __future__ import annotations


class Order:
    """What to run."""

    def __init__(self, kind: str, target: str, arguments: list[str]) -> None:
        self.kind = kind
        self.target = target
        self.arguments = arguments
