"""The metrics of one worker: what its supervisor knows without a query."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...worker.figures import SupervisorFigures, WorkerFigures

_WORKER = ["worker"]


class WorkerCollector(Collector):
    """Collects the metrics of one worker."""

    def __init__(self, figures: SupervisorFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield each metric."""
        figures = self._figures.read()
        yield GaugeMetricFamily(
            "horsies_runners", "Runners that take tasks.", sum(one.is_up for one in figures.runners)
        )
        yield GaugeMetricFamily("horsies_runners_configured", "Runners that this worker keeps up.", figures.configured)
        yield CounterMetricFamily(
            "horsies_runner_restarts",
            "Runners started in the place of others.",
            max(0, figures.started - figures.configured),
        )
        ended = CounterMetricFamily(
            "horsies_runner_tasks", "Tasks that ended after an attempt, since the worker began.", labels=["outcome"]
        )
        ended.add_metric(["completed"], figures.ended.completed)
        ended.add_metric(["failed"], figures.ended.failed)
        yield ended
        yield CounterMetricFamily(
            "horsies_runner_retries", "Attempts after which the task was retried.", figures.ended.retried
        )
        yield from _slots(figures)
        yield from _memory(figures)


def _slots(figures: WorkerFigures) -> Iterator[Metric]:
    slots = {"threads": figures.threads, "async_slots": figures.async_slots}
    for kind, text in (("threads", "sync tasks"), ("async_slots", "coroutine tasks")):
        all_slots = GaugeMetricFamily(f"horsies_runner_{kind}", f"Slots for {text}.", labels=_WORKER)
        taken = GaugeMetricFamily(f"horsies_runner_{kind}_taken", f"Slots for {text} that are taken.", labels=_WORKER)
        for runner in figures.runners:
            all_slots.add_metric([runner.worker_id], slots[kind])
            taken.add_metric([runner.worker_id], getattr(runner.activity, f"{kind}_taken"))
        yield from (all_slots, taken)


def _memory(figures: WorkerFigures) -> Iterator[Metric]:
    family = GaugeMetricFamily("horsies_runner_memory_bytes", "Resident memory of a runner.", labels=_WORKER)
    for runner in figures.runners:
        if runner.memory is not None:
            family.add_metric([runner.worker_id], runner.memory)
    yield family
    if figures.memory is not None:
        yield GaugeMetricFamily("horsies_supervisor_memory_bytes", "Resident memory of the supervisor.", figures.memory)
