"""What Prometheus scrapes, and the dashboard that asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ftlaunch.launcher.history.ledger import Ledger, up_to_now
from ftlaunch.launcher.history.model import History, Pulse
from ftlaunch.launcher.views.metrics import Sources, metrics_page
from support.event_logs import Event, EventLogWriter, Fault

DASHBOARD = Path(__file__).resolve().parents[2] / "examples" / "grafana" / "ftlaunch.json"
PULSES = (Pulse(0, 0.25, 200, 0, 0.1), Pulse(1, None), Pulse(2, 3.5, 199, 0, 0.2))
FAULTS = (
    Fault(60, kept=50, stopped_s=0.03, setup_s=1.0),
    Fault(60, kind="exception", reason="E: x", kept=100, stopped_s=2.0, setup_s=2.0),
    Fault(60, kind="lease", reason="lease lost", local_rank=None),
)


def history_of(events: Sequence[Event]) -> History:
    ledger = Ledger()
    for event in events:
        ledger.feed(event)
    return ledger.history()


def scrape(history: History, pulses: Sequence[Pulse] = (), accept: str = "") -> dict[tuple[str, ...], float]:
    """Samples by name and label values, labels in alphabetical order."""
    page = metrics_page(Sources(lambda: history, lambda: pulses, lambda: 2))
    answer = page({"accept": accept})
    assert answer.status == 200 and answer.content_type.startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def samples() -> dict[tuple[str, ...], float]:
    return scrape(history_of(EventLogWriter(step_s=0.1).run(FAULTS, 200)), PULSES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (("ftlaunch_generation",), 3),
        (("ftlaunch_restarts_total", "SIGKILL"), 1),
        (("ftlaunch_restarts_total", "exception"), 1),
        (("ftlaunch_restarts_total", "lost lease"), 1),
        (("ftlaunch_fencing_total",), 1),
        (("ftlaunch_ranks_started_total", "cold"), 8),
        (("ftlaunch_ranks_started_total", "standby"), 0),
        (("ftlaunch_steps_done",), 200),
        (("ftlaunch_steps_repeated",), 20),
        (("ftlaunch_phase_seconds_count", "workers_stopped"), 3),
        (("ftlaunch_phase_seconds_bucket", "0.025", "workers_stopped"), 1),
        (("ftlaunch_phase_seconds_bucket", "0.05", "workers_stopped"), 2),
        (("ftlaunch_phase_seconds_bucket", "1.0", "workers_stopped"), 2),
        (("ftlaunch_phase_seconds_bucket", "2.5", "workers_stopped"), 3),
        (("ftlaunch_phase_seconds_bucket", "+Inf", "workers_stopped"), 3),
        (("ftlaunch_phase_seconds_sum", "workers_stopped"), pytest.approx(2.05)),
        (("ftlaunch_phase_seconds_sum", "rendezvous_completed"), pytest.approx(0.006)),
        (("ftlaunch_phase_seconds_sum", "gpu_reclaimed"), pytest.approx(0.03)),
        (("ftlaunch_recovery_seconds_count",), 3),
        (("ftlaunch_step",), 200),
        (("ftlaunch_step_seconds",), pytest.approx(0.2)),
        (("ftlaunch_beat_age_seconds", "0"), 0.25),
        (("ftlaunch_beat_age_seconds", "2"), 3.5),
        (("ftlaunch_standbys_ready",), 2),
        (("ftlaunch_training",), 0),
    ],
)
def test_samples(samples: dict[tuple[str, ...], float], name: tuple[str, ...], value: float) -> None:
    assert samples[name] == value


def test_a_rank_that_never_beat_has_no_age(samples: dict[tuple[str, ...], float]) -> None:
    assert ("ftlaunch_beat_age_seconds", "1") not in samples


def test_goodput_and_uses_of_time(samples: dict[tuple[str, ...], float]) -> None:
    training, infrastructure = (samples["ftlaunch_goodput_ratio", kind] for kind in ("training", "infrastructure"))
    assert 0 < training < infrastructure < 1
    uses = {name[1]: value for name, value in samples.items() if name[0] == "ftlaunch_time_seconds"}
    assert sum(uses.values()) == pytest.approx(samples["ftlaunch_up_seconds",])
    lost = [value for name, value in samples.items() if name[0] == "ftlaunch_lost_seconds"]
    assert len(lost) == 3 and all(value > 0 for value in lost)


def test_diagnoses_are_counted_by_kind() -> None:
    events = EventLogWriter().run([FAULTS[0], FAULTS[0]], 200)
    for generation in (0, 1):
        events.insert(-1, {**events[-1], "event": "diagnosed", "generation": generation, "kind": "gpu_error"})
    assert scrape(history_of(events))["ftlaunch_diagnoses_total", "gpu_error"] == 2


def test_before_anything_has_happened() -> None:
    samples = scrape(History())
    assert samples["ftlaunch_generation",] == 0 and samples["ftlaunch_steps_done",] == 0
    assert not any(name[0] == "ftlaunch_goodput_ratio" for name in samples)


def test_counters_and_histograms_never_go_back() -> None:
    events = EventLogWriter(explicit=False).run([*FAULTS, *FAULTS], 900)
    before: dict[tuple[str, ...], float] = {}
    for end in range(1, len(events) + 1):
        now = scrape(history_of(events[:end]))
        for name, value in before.items():
            if name[0].startswith("ftlaunch_") and name[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert now[name] >= value, (end, name)
        before = now


def test_the_format_is_the_one_that_was_asked_for() -> None:
    page = metrics_page(Sources(History))
    answer = page({"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.content_type.startswith("application/openmetrics-text") and answer.body.endswith(b"# EOF\n")


def test_what_is_heard_now_is_one_more_reading() -> None:
    log = EventLogWriter(step_s=0.1)
    log.write("job_started")
    log.start(0)
    log.train(0, 1, 10, 0.5)
    history = history_of(log.events)
    now = log.at + 4.0
    later = up_to_now(history, [Pulse(0, 0.5, 45), Pulse(1, 0.1, 44), Pulse(2)], now)
    reading = later.generations[-1].readings[-1]
    assert (reading.step, reading.last_beat) == (45, pytest.approx(now - 0.1))
    assert up_to_now(history, [Pulse(0)], now) is history
    log.fail(0, Fault(10), restart=False)
    failed = history_of(log.events)
    assert up_to_now(failed, [Pulse(0, 0.5, 45)], now) is failed


def test_the_page_names_what_there_is(samples: dict[tuple[str, ...], float]) -> None:
    text = (DASHBOARD.parents[2] / "docs" / "goodput.md").read_text()
    known = {re.sub("_(bucket|sum|count)$", "", name[0]) for name in samples if name[0].startswith("ftlaunch_")}
    assert set(re.findall(r"`(ftlaunch_\w+)`", text)) == known | {
        "ftlaunch_checkpoint_step",
        "ftlaunch_diagnoses_total",
    }


# -- the dashboard ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def test_dashboard_asks_only_for_what_there_is(
    dashboard: dict[str, Any], samples: dict[tuple[str, ...], float]
) -> None:
    # This one needs checkpoints that tell their step.
    known = {name[0] for name in samples} | {"ftlaunch_checkpoint_step"}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [item["definition"] for item in dashboard["templating"]["list"] if "definition" in item]
    asked = {name for expression in expressions for name in re.findall(r"\bftlaunch_\w+", expression)}
    assert asked - known == set()
    assert {"ftlaunch_goodput_ratio", "ftlaunch_restarts_total", "ftlaunch_phase_seconds_sum"} <= asked
    labels = {label for expression in expressions for label in re.findall(r"by \((\w+)\)", expression)}
    assert labels <= {"cause", "phase", "use", "le", "from"}


def test_dashboard_has_the_shape_that_grafana_imports(dashboard: dict[str, Any]) -> None:
    assert isinstance(dashboard["schemaVersion"], int) and dashboard["title"] and dashboard["uid"]
    variables = {item["name"]: item["type"] for item in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in {"stat", "timeseries"} and panel["title"] and panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        area = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not area & cells, f"{panel['title']} covers another panel"
        cells |= area
