"""Readiness follows the training; liveness does not."""

from __future__ import annotations

import json

import pytest

from ftlaunch.launcher.history.ledger import Ledger
from ftlaunch.launcher.views.health_port import Readiness, health_pages, readiness
from support.event_logs import EventLogWriter, Fault


def judged(log: EventLogWriter, after_s: float = 0.0, needs_beat: bool = True) -> Readiness:
    ledger = Ledger()
    for event in log.events:
        ledger.feed(event)
    now = log.at + after_s
    return readiness(ledger.history(now), now, 60.0, needs_beat)


def test_readiness_through_the_life_of_a_job() -> None:
    log = EventLogWriter()
    seen = [judged(log)]
    log.write("job_started")
    seen.append(judged(log))
    log.agree(0, 0.1)
    seen.append(judged(log))
    log.launch(0, 0.1)
    seen.append(judged(log))
    log.train(0, 1, 10, 1.0)
    seen += [judged(log, 59.0), judged(log, 61.0)]
    log.fail(0, Fault(10))
    seen.append(judged(log))
    log.launch(1, 0.1)
    seen.append(judged(log))
    log.train(1, 11, 10, 1.0)
    seen.append(judged(log))
    log.finish(1)
    seen.append(judged(log))
    assert [(item.ready, item.reason) for item in seen] == [
        (False, "the first generation is not agreed on yet"),
        (False, "the first generation is not agreed on yet"),
        (False, "generation 0 is being started"),
        (False, "no beat was heard yet"),
        (True, "steps are heard"),
        (False, "no beat for 61 s"),
        (False, "generation 1 is being started"),
        (False, "no beat was heard yet"),
        (True, "steps are heard"),
        (False, "the job has ended"),
    ]
    assert (seen[8].generation, seen[8].step) == (1, 20)


def test_a_generation_that_failed_is_named() -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    log.train(0, 1, 10, 1.0)
    log.write("failure_detected", 0, kind="signal", reason="was killed by SIGKILL", rank=0, local_rank=0)
    assert judged(log).reason == "generation 0 failed: was killed by SIGKILL"


def test_started_ranks_are_enough_where_nobody_listens() -> None:
    log = EventLogWriter()
    log.write("job_started")
    log.start(0)
    assert judged(log, 1000.0, needs_beat=False).ready


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
def test_pages(ready: bool, status: int) -> None:
    pages = health_pages(lambda: Readiness(ready, "why", 3, 7, 0.12345))
    answer = pages["/readyz"]({})
    assert (answer.status, answer.content_type) == (status, "application/json")
    told = {"ready": ready, "reason": "why", "generation": 3, "step": 7, "beat_age_s": 0.123}
    assert json.loads(answer.body) == told
    assert pages["/healthz"]({}).status == 200
