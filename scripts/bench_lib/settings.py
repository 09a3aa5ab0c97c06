"""How long the samples are, and what a sample gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """``fault_step``: steps of 20 ms before the one fault of b to e, by when standbys are warm; ``cold_fault_step``:
    the same for launchers that have none.

    ``node_faults``: faults in each job of k to m; ``rounds``: failures of a crowd of agents in j.
    """

    fault_step: int = 1410
    cold_fault_step: int = 310
    window_s: float = 10.0
    settle_s: float = 5.0
    backoff_scale: float = 0.1
    steady_steps: int = 6000
    steady_warm_up_s: float = 25.0
    node_faults: int = 3
    rounds: int = 3


QUICK = Settings(
    fault_step=1210, window_s=3.0, settle_s=2.0, steady_steps=2500, steady_warm_up_s=12.0, node_faults=1, rounds=1
)
Figures = dict[str, float]
