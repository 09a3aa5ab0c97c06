"""What other nodes say of themselves: read with suspicion, put together, and not asked for too often."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from ftlaunch.launcher import clock
from ftlaunch.launcher.ftctl import _headline, _ranks
from ftlaunch.launcher.hearing.peers import Peers
from ftlaunch.launcher.views import told
from ftlaunch.launcher.views.cluster import Cluster
from ftlaunch.launcher.views.overview import describe_node, merge
from ftlaunch.rendezvous.interface import Answers
from support import control_stand_in as stand_in


def described(ranks: int = 12) -> dict[str, Any]:
    """As it comes from another node: through JSON."""
    node = describe_node(stand_in.state(ranks), stand_in.node_facts(ranks), stand_in.heard(ranks), 70.0)
    return json.loads(json.dumps(node))  # type: ignore[no-any-return]


def test_what_a_node_says_is_taken_as_it_is() -> None:
    node = described()
    assert told.node(node) == node
    assert told.node({**node, "last_cause": None, "progress": None, "more": "x"}) == {
        **node,
        "last_cause": None,
        "progress": None,
    }


def spoilt() -> list[Any]:
    node = described(2)
    wrong: list[Any] = [{}, {"version": 1}, {**node, "version": 99}]
    for name in node:
        wrong += [{**node, name: value} for value in ([[]], {"x": 1}) if name not in ("progress", "last_cause")]
        wrong.append({**node, name: object()})
    for name in node["ranks"][0]:
        wrong += [{**node, "ranks": [{**node["ranks"][0], name: value}]} for value in ({}, [1], object())]
    wrong += [
        {**node, "up_s": float("inf")},
        {**node, "host": "\ud800"},
        {**node, "ranks": [{**node["ranks"][0], "sections": ["\udfff"]}]},
    ]
    wrong += [{**node, "ranks": [None]}, {**node, "ranks": {}}, {**node, "ranks": [{**node["ranks"][0], "rank": True}]}]
    wrong += [{**node, "standby": {"mode": "off"}}, {**node, "limits": [{"name": "step"}]}, {**node, "last_cause": {}}]
    return wrong


@pytest.mark.parametrize("said", spoilt())
def test_what_makes_no_sense_is_no_node(said: Any) -> None:
    assert told.node(said) is None


def test_what_is_let_through_can_be_shown() -> None:
    nodes = [told.node({**described(4), "host": f"host-{n}\x1b[2J"}) for n in range(3)]
    status = merge([node for node in nodes if node is not None])
    text = "\n".join(
        [*_headline.headline(status), *(" ".join(r.cells) for r in _ranks.rows(status["ranks"], 100, True))]
    )
    assert "3 node" in text and "\x1b" not in text


class Meeting:
    """Nodes that all say the same."""

    def __init__(self, *said: Mapping[str, Any]) -> None:
        self.said = dict(zip("abcdefgh", said, strict=False))
        self.asked = 0

    def respond_with(self, respondent: Any) -> None:
        self.respondent = respondent

    async def ask(self, question: Any, limit_s: float, conclude: Any = None) -> Answers:
        self.asked += 1
        await asyncio.sleep(0)
        return Answers(self.said)


def test_many_that_watch_at_once_cost_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    meeting = Meeting(described(), {"version": 1, "ranks": "garbage"})

    async def scenario() -> None:
        nonlocal now
        cluster = Cluster(Peers(meeting), described)  # type: ignore[arg-type]

        async def ask(nodes: int) -> list[int]:
            found = await asyncio.gather(*(cluster.others(2, nodes) for _ in range(5)))
            return [len(each) for each in found]

        assert await ask(1000) == [1] * 5 and meeting.asked == 1
        now += 9.0
        assert await ask(1000) == [1] * 5 and meeting.asked == 1
        now += 2.0
        await ask(1000)
        assert meeting.asked == 2
        # With a few nodes everybody sees the present.
        now += 0.1
        await ask(2)
        assert meeting.asked == 3

    asyncio.run(scenario())
