"""The entries of the decision table, by what they are about."""

from __future__ import annotations

from ftlaunch.launcher.decision.table import TABLE
from ftlaunch.launcher.decision.transitions import clearing, others, ranks, starting

__all__ = ["TABLE", "clearing", "others", "ranks", "starting"]
