"""``--metrics-port``: what Prometheus scrapes. Everything is derived from the run's events at the moment of a scrape,
but the age of beats, which changes faster than events tell. Imported only when a port was asked for (60 ms).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ftlaunch.launcher import __version__
from ftlaunch.launcher.history.causes import cause_name
from ftlaunch.launcher.history.goodput import Account, Use, account
from ftlaunch.launcher.history.model import Generation, History, Pulse
from ftlaunch.launcher.journal.records import RECOVERY
from ftlaunch.launcher.views.tiny_http import Answer, Page

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds; a recovery lasts from some milliseconds to a checkpoint's loading time."""
PHASES = tuple(map(Use, RECOVERY))


@dataclass(frozen=True)
class Sources:
    """Where the numbers come from; all are asked anew at every scrape."""

    history: Callable[[], History]
    pulses: Callable[[], Sequence[Pulse]] = tuple
    standbys: Callable[[], int] | None = None


class JobCollector(Collector):
    """All metrics of one agent."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Metric]:
        """Nothing: otherwise registering would collect, which the agent has no use for."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Called by the registry. About 1 ms, and 20 us for each generation."""
        history = self._sources.history()
        told = account(history)
        yield from _identity(history)
        yield from _counts(history, told)
        yield from _histograms(told)
        yield from _goodput(told)
        yield from _progress(history, told, self._sources.pulses())
        if self._sources.standbys is not None:
            yield _gauge("standbys_ready", "Warm standby processes of this node.", self._sources.standbys())


def metrics_page(sources: Sources) -> Page:
    """``/metrics`` for :class:`.tiny_http.TinyServer`, in the format that the scraper asks for."""
    registry = CollectorRegistry()
    registry.register(JobCollector(sources))
    ProcessCollector(registry=registry)

    def page(fields: Mapping[str, str]) -> Answer:
        encode, content_type = exposition.choose_encoder(fields.get("accept", ""))
        return Answer(encode(registry), content_type)

    return page


def _identity(history: History) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "ftlaunch", "The agent.", {"version": __version__, "job_id": history.job_id, "run_id": history.run_id}
    )
    generation = history.generations[-1] if history.generations else Generation(0)
    yield _gauge("generation", "Number of the generation, from 0.", generation.number)
    yield _gauge("nodes", "Nodes of the generation.", generation.nodes)
    yield _gauge("world_size", "Ranks of the generation on all nodes.", generation.world_size or generation.slots)
    yield _gauge("up_seconds", "Seconds since the agent's start.", history.wall_s)
    training = generation.first_beat is not None and generation.failed is None and not history.finished
    yield _gauge("training", "1 while the generation has begun to train and has not failed.", int(training))


def _counts(history: History, told: Account) -> Iterator[Metric]:
    restarts = CounterMetricFamily("ftlaunch_restarts", "Generations that were followed by another.", labels=["cause"])
    again = {generation.number for generation in history.restarts}
    causes = Counter(cause_name(incident) for number, incident in history.incidents.items() if number in again)
    for cause, count in sorted(causes.items()):
        restarts.add_metric([cause], count)
    yield restarts
    diagnoses = CounterMetricFamily("ftlaunch_diagnoses", "What ranks died of, by the evidence.", labels=["kind"])
    kinds = Counter(item.diagnosed.kind for item in history.generations if item.diagnosed is not None)
    for kind, count in sorted(kinds.items()):
        diagnoses.add_metric([kind], count)
    yield diagnoses
    fenced = sum(incident.cause.kind == "lease" for incident in history.incidents.values())
    help_text = "Times that this node stopped its ranks because its lease might have expired."
    yield CounterMetricFamily("ftlaunch_fencing", help_text, value=fenced)
    started = CounterMetricFamily("ftlaunch_ranks_started", "Ranks started on this node.", labels=["from"])
    warm = sum(generation.warm for generation in history.generations)
    started.add_metric(["standby"], warm)
    started.add_metric(["cold"], sum(generation.slots for generation in history.generations) - warm)
    yield started
    # Estimates may be corrected by what is heard later: gauges, since a counter must never go back.
    lost = GaugeMetricFamily("ftlaunch_lost_seconds", "Time that incidents cost so far.", labels=["cause"])
    for cause, (_, seconds) in told.lost_by_cause().items():
        lost.add_metric([cause], seconds)
    yield lost
    yield _gauge("steps_done", "Steps that count, each once.", told.steps_done)
    yield _gauge("steps_repeated", "Steps that were run again after a failure.", told.steps_repeated)


def _histograms(told: Account) -> Iterator[Metric]:
    phases = HistogramMetricFamily(
        "ftlaunch_phase_seconds", "Seconds of each phase of a recovery, from the phase before.", labels=["phase"]
    )
    for phase in PHASES:
        _add(phases, [phase.value], [loss.phases_s[phase] for loss in told.losses if phase in loss.phases_s])
    yield phases
    recovery = HistogramMetricFamily("ftlaunch_recovery_seconds", "Seconds from a failure to the first beat after it.")
    _add(recovery, [], [loss.recovery_s for loss in told.losses if loss.recovery_s is not None])
    yield recovery


def _add(family: HistogramMetricFamily, labels: list[str], values: Sequence[float]) -> None:
    buckets = [(str(limit), float(sum(value <= limit for value in values))) for limit in BUCKETS]
    family.add_metric(labels, [*buckets, ("+Inf", float(len(values)))], sum(values))


def _goodput(told: Account) -> Iterator[Metric]:
    family = GaugeMetricFamily("ftlaunch_goodput_ratio", "Goodput since the start, 0 to 1.", labels=["kind"])
    for kind, share in (("training", told.training), ("infrastructure", told.infrastructure)):
        if share is not None:
            family.add_metric([kind], share)
    yield family
    spent = GaugeMetricFamily("ftlaunch_time_seconds", "Wall time so far by what it went for.", labels=["use"])
    for use in Use:
        spent.add_metric([use.value], told.by_use.get(use, 0.0))
    yield spent


def _progress(history: History, told: Account, pulses: Sequence[Pulse]) -> Iterator[Metric]:
    readings = history.generations[-1].readings if history.generations else ()
    number = history.generations[-1].number if history.generations else 0
    steps = [pulse.step for pulse in pulses if pulse.step is not None]
    steps += [told.steps[number].last] if number in told.steps and not steps else []
    if steps:
        yield _gauge("step", "The last step that was heard of.", max(steps))
    saved = max((item.checkpoint_step for item in readings if item.checkpoint_step is not None), default=None)
    if saved is not None:
        yield _gauge("checkpoint_step", "Step of the last checkpoint that was heard of.", saved)
    times = [pulse.step_s for pulse in pulses if pulse.step_s is not None]
    step_s = max(times) if times else told.step_s
    if step_s is not None:
        yield _gauge("step_seconds", "Seconds per step, lately.", step_s)
    ages = GaugeMetricFamily("ftlaunch_beat_age_seconds", "Seconds since a rank's last beat.", labels=["rank"])
    for pulse in pulses:
        if pulse.beat_age_s is not None:
            ages.add_metric([str(pulse.rank)], pulse.beat_age_s)
    yield ages


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ftlaunch_{name}", help_text, value=value)
