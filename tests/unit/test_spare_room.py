"""How fast standbys may import beside the ranks."""

from __future__ import annotations

import pytest

from ftlaunch.launcher.host.spare_room import BUSY_SHARE, Pace, choose_pace


@pytest.mark.parametrize(
    ("ranks", "cpus", "pace"),
    [
        (1, 1, Pace(BUSY_SHARE, 1)),
        (8, 4, Pace(BUSY_SHARE, 1)),
        (1, 2, Pace(1.0, 1)),
        (4, 6, Pace(1.0, 2)),
        (2, 64, Pace(1.0, 2)),
    ],
)
def test_full_speed_where_there_are_more_cpus_than_ranks(ranks: int, cpus: int, pace: Pace) -> None:
    assert choose_pace(ranks, cpus) == pace
