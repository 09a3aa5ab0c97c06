"""The table of ``ftctl status``: rows, groups, widths, headline. Pure functions on what an agent answers."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.launcher.decision.state import State
from ftlaunch.launcher.ftctl import _format, _headline, _layout, _ranks
from ftlaunch.launcher.ftctl._ranks import Row, rows
from ftlaunch.launcher.views.overview import describe_node, merge
from support import control_stand_in as stand_in


def status(ranks: int, **changes: Any) -> dict[str, Any]:
    node = describe_node(stand_in.state(ranks), stand_in.node_facts(ranks, **changes), stand_in.heard(ranks), 100.0)
    return merge([node])


def cells(row: Row) -> dict[str, str]:
    return dict(zip(_ranks.HEADER, row.cells, strict=True))


def test_each_rank_has_a_row_while_there_is_room() -> None:
    shown = rows(status(12)["ranks"], 12)
    assert [row.cells[0] for row in shown] == [str(rank) for rank in range(12)]
    assert cells(shown[3]) == {
        "RANK": "3",
        "PID": "5003",
        "STATE": "running",
        "SECTION": "step",
        "STEP": "1,200",
        "RATE": "12.5/s",
        "SILENT / LIMIT": "0.07 s / 30 s",
        "MEMORY": "903 MiB",
        "FAILED": "2",
        "LAST CAUSE": "was killed by SIGKILL",
    }
    assert shown[7].mood == "alarm" and shown[11].mood == "worry" and shown[0].mood == ""
    assert cells(shown[9])["SECTION"] == "checkpoint"


@pytest.mark.parametrize("count", [64, 1000])
def test_without_room_alike_ranks_are_together_and_the_others_stand_out(count: int) -> None:
    shown = [cells(row) for row in rows(status(count)["ranks"], 20)]
    assert len(shown) == 4
    assert [row["RANK"] for row in shown] == [
        *("7", "11"),
        f"0-6, 8, 10, 12-{count - 1} ({count - 3})",
        "9 (1)",
    ]
    assert shown[0]["SILENT / LIMIT"] == "25 s / 30 s"
    assert shown[2]["STEP"] == "1,200" and shown[2]["SILENT / LIMIT"] == "≤ 0.08 s / 30 s"
    assert shown[2]["FAILED"] == "2"


def test_when_all_stand_out_they_are_still_few_rows() -> None:
    ranks = describe_node(stand_in.stopping(1000), stand_in.node_facts(1000), stand_in.heard(1000), 100.0)["ranks"]
    shown = rows(ranks, 15)
    assert len(shown) <= 16
    assert any("killed by SIGKILL" in row.cells for row in shown)


def test_steps_of_a_group_are_a_range() -> None:
    ranks = status(64)["ranks"]
    for rank in ranks[20:]:
        rank["step"] = 1250
    assert "1,200…1,250" in rows(ranks, 5)[-2].cells or "1,200…1,250" in rows(ranks, 5)[-1].cells


def test_a_rank_of_which_nothing_is_known() -> None:
    node = describe_node(stand_in.state(1), stand_in.node_facts(1, processes={}), stand_in.Heard(), 100.0)
    row = cells(rows(node["ranks"], 5)[0])
    assert (row["STEP"], row["RATE"], row["SILENT / LIMIT"], row["MEMORY"]) == ("-", "-", "-", "-")


def test_optimizer_steps_are_told_apart_from_the_scripts_own() -> None:
    ranks = status(1)["ranks"]
    ranks[0].update(step=None, ticks=1500)
    assert cells(rows(ranks, 5)[0])["STEP"] == "1,500 opt"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"limit_s": None}, "1.0 s / none"),
        ({"limit_origin": "default"}, "1.0 s / 30 s*"),
        ({"limit_origin": "configured"}, "1.0 s / 30 s="),
        ({"silence_s": None, "beat_age_s": 2.5}, "2.5 s / -"),
    ],
)
def test_where_a_limit_comes_from_is_marked(changes: dict[str, Any], text: str) -> None:
    ranks = status(1)["ranks"]
    ranks[0].update({"silence_s": 1.0, "limit_origin": "learnt", **changes})
    assert cells(rows(ranks, 5)[0])["SILENT / LIMIT"] == text


def test_several_nodes_have_a_column() -> None:
    shown = rows(status(2)["ranks"], 5, with_hosts=True)
    assert _ranks.header(True)[1] == "NODE" and shown[0].cells[1] == "node-a"


def test_what_a_rank_says_cannot_steer_the_terminal() -> None:
    ranks = status(1)["ranks"]
    ranks[0].update(sections=["\x1b[2Jeval"], last_cause="boom\x1b]0;x\x07\nmore")
    assert all(cell.isprintable() for cell in rows(ranks, 5)[0].cells)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    made = status(64)
    for room in (5, 100):
        shown = [row.cells for row in rows(made["ranks"], room)]
        lines = _layout.table(_ranks.HEADER, shown, width, _ranks.NUMBERS)
        assert len(lines) == len(shown) + 1
        assert max(map(len, lines)) <= width
        assert lines[0].startswith("RANK")
    assert all(len(part) <= width for line in _headline.headline(made) for part in _layout.fold(line, width))


def test_columns_give_way_in_order() -> None:
    shown = [row.cells for row in rows(status(3)["ranks"], 5)]
    heads = [_layout.table(_ranks.HEADER, shown, width)[0] for width in (200, 90, 60)]
    assert "LAST CAUSE" in heads[0] and "PID" in heads[0]
    assert all(name in heads[2] for name in ("RANK", "STATE", "STEP", "SILENT / LIMIT"))
    assert "PID" not in heads[2]


def test_table_without_rows() -> None:
    assert _layout.table(_ranks.HEADER, [], 200)[0].split()[0] == "RANK"


def test_headline_tells_what_matters() -> None:
    text = "\n".join(_headline.headline(status(12)))
    assert "generation 2" in text and "running for 40 s" in text and "standbys 12 of 12 ready" in text
    assert "restarts 2 (as long as there is progress, 3 without)" in text
    assert "last cause: rank 3 was killed by SIGKILL (generation 1); restart 2: it reached step 175" in text
    assert "slow: rank 11 takes 0.12 s for a step" in text


def test_headline_before_the_first_generation() -> None:
    made = merge([describe_node(State(2), stand_in.node_facts(2), stand_in.heard(0), 100.0)])
    assert _headline.headline(made)[0].startswith("job train   no generation yet   joining for ")


def test_headline_of_a_deaf_job() -> None:
    assert "only deaths are seen" in "\n".join(_headline.headline(status(2, listening=False)))


def test_limits_are_told_with_their_origin() -> None:
    assert list(_headline.limits(status(2))) == [
        "limit of step: 30 s (learnt, longest silence 0.21 s of 76,800)",
        "limit of init: 30m00s (default)",
    ]


def test_bar() -> None:
    assert _headline.bar(status(2)) == (f"[{'#' * 4}{'.' * 26}] 12%   step 1,200 of 10,000   12.5/s   11m44s left")
    assert _headline.bar({"progress": None}) == ""
    without = {"step": 7, "total": None, "step_rate": None, "eta_s": None}
    assert _headline.bar({"progress": without}) == "step 7   -"
    over = {"step": 12, "total": 10, "step_rate": 1.0, "eta_s": 0.0}
    assert _headline.bar({"progress": over}).startswith(f"[{'#' * 30}] 100%")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.004, "0.00 s"), (0.213, "0.21 s"), (2.04, "2.0 s"), (99.9, "99 s"), (100, "1m40s"), (3599, "59m59s")),
        *((3725, "1h02m"), (4 * 86400 + 3 * 3600, "4d03h"), (None, "-"), (-1, "0.00 s")),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert _format.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (17, "17 B"), (2048, "2 KiB"), (900 << 20, "900 MiB"), (3 << 40, "3 TiB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert _format.size(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "-"), (0.0, "-"), (0.01, "1m40s each"), (0.853, "0.853/s"), (12.54, "12.5/s"), (250, "250/s")],
)
def test_rates(rate: float | None, text: str) -> None:
    assert _format.rate(rate) == text
